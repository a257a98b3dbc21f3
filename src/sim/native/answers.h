// What functions answer of libraries that a simulated GPU stands for. Those that look at nothing are declared without their arguments: who calls
// them by C's convention takes them back himself.
#pragma once

// Gives a number or an address by the place that was named for it; 0 is success in each of these libraries.
template <typename To, typename Given>
constexpr auto is(To* out, Given value) {
  *out = static_cast<To>(value);
  return 0;
}

#define ANSWERS(name, status) int name() { return status; }
#define DONE(name) ANSWERS(name, 0)
// Gives a value by the first argument.
#define GIVES(name, type, value) int name(type* out) { return is(out, value); }
