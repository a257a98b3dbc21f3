// What a rehearsal's processes write is held back: see overlay.cpp.
#pragma once
#include <dlfcn.h>

// The C library's function behind one of ours, looked for once.
template <typename Function>
static Function behind(Function& place, const char* name) {
  if (!place) place = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  return place;
}

// Begins to hold back; `folder` was made by vramlab (src/rehearse/src/run/held.rs). In the command's first process also what the kernel can do to it.
void hold_writes(const char* folder, bool is_first);

// Before that: no real GPU is to be reached.
void hide_gpus();

// Where the file is that a process would find by this name; the name itself where it is nobody's of ours. Good until the thread asks again.
const char* held_path(const char* path);

// Whether a program may be started; says why not, and sets errno.
bool may_start(const char* program, bool looks_in_path);
