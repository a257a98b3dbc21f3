// What the parts of libvramlab_start.so have of one another, beside writes.h.
#pragma once
#pragma GCC visibility push(hidden)

// What this process was started with: a setting of a rehearsal, which its script may have removed from the environment since.
const char* setting(const char* name);

// Takes an entry that begins so out of this process's environment, and gives it.
const char* take(const char* beginning);

// In the process that vramlab itself started, and in no other, leaves a guard above it; true in the command.
bool stand_guard();

#pragma GCC visibility pop
