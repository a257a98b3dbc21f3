// What both native libraries of this project need at their edge: no exception leaves C++.
#pragma once
#include <c10/util/Exception.h>
#include <cstring>

// Runs the body; gives nullptr, or a message that the caller frees.
template <typename Body>
char* guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const c10::Error& e) {
    return strdup(e.what_without_backtrace());
  } catch (const std::exception& e) {
    return strdup(e.what());
  } catch (...) {
    return strdup("an unknown C++ exception");
  }
}
