// What `vramlab rehearse` preloads (LD_PRELOAD) into every process that a command starts. It does four things:
//
// - In a Python it calls Python's half when the script begins, or torch is imported: by an audit hook, which no flag (-I, -E, -S), no
//   environment and no sitecustomize keeps away.
// - It hands itself on. A child that gets another environment, or none, still gets what a rehearsal needs; and whoever opens a GPU's driver,
//   by whatever path, gets the simulated one.
// - The first process becomes two: the command, and a guard that stays its parent and that of all orphans below it. The guard ends them when
//   vramlab says so, or is gone.
// - What processes write is held back (overlay.cpp), by the kernel where it can (confine.cpp).
//
// A Python that is started with VRAMLAB_WAITS imports torch and waits to be copied (zygote.py); in each copy all of that begins.
//
// It is loaded into shells and compilers, too, and with whatever C++ library a program brings: it uses the C library alone.
#include "start.h"
#include "writes.h"

#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char** environ;

namespace {

// ---- what this process was started with --------------------------------------------------------------------------------------------------

constexpr int kMost = 64;
// Settings as `NAME=value`; a script may remove them from its own environment.
const char* settings[kMost];
int settings_count = 0;
// Entries of LD_PRELOAD and LD_LIBRARY_PATH, and the folder that comes first in PATH; null outside of a rehearsal.
const char *preload = nullptr, *folders = nullptr, *programs = nullptr;
// The folder of the simulated driver; null where a real one is measured.
const char* drivers = nullptr;
// What opens a real driver finds no card by it: processes that this library is not in keep it.
constexpr char kNoCards[] = "CUDA_VISIBLE_DEVICES=vramlab";

}  // namespace

const char* setting(const char* name) {
  const size_t length = strlen(name);
  for (int i = 0; i < settings_count; i++) {
    if (strncmp(settings[i], name, length) == 0 && settings[i][length] == '=') return settings[i] + length + 1;
  }
  return nullptr;
}

// Takes an entry that begins so out of this process's environment, and gives it. Out of the array: bash has a getenv and an unsetenv of its own,
// which know nothing before its main.
const char* take(const char* beginning) {
  const char* taken = nullptr;
  char** kept = environ;
  for (char** entry = environ; entry && *entry; entry++) {
    if (strncmp(*entry, beginning, strlen(beginning)) == 0) taken = *entry;
    else *kept++ = *entry;
  }
  if (kept) *kept = nullptr;
  return taken;
}

namespace {

void remember_settings() {
  for (char** entry = environ; entry && *entry; entry++) {
    if (strncmp(*entry, "VRAMLAB_", 8) == 0 && strncmp(*entry, "VRAMLAB_REHEARSAL_OWNER=", 24) != 0 && settings_count < kMost) {
      settings[settings_count++] = strdup(*entry);
    }
  }
  if (!setting("VRAMLAB_REHEARSAL")) return;
  preload = setting("VRAMLAB_REHEARSAL_PRELOAD");
  programs = setting("VRAMLAB_REHEARSAL_PROGRAMS");
  folders = setting("VRAMLAB_REHEARSAL_FOLDERS");
  drivers = setting("VRAMLAB_REHEARSAL_DRIVERS");
}

// ---- the environment of a child ------------------------------------------------------------------------------------------------------------

bool has_part(const char* list, const char* part, const char* separators) {
  const size_t length = strlen(part);
  for (const char* at = list; *at;) {
    const size_t here = strcspn(at, separators);
    if (here == length && strncmp(at, part, length) == 0) return true;
    at += here;
    if (*at) at++;
  }
  return false;
}

struct List {
  const char* name;
  const char* part;
  const char* separators;
  // Whether it has to come first, and whether it is made where it is missing.
  bool first, always;
};

// Bytes that `fill` wants. Both are called between vfork and exec: they take no memory but the caller's.
size_t room_for(char* const* given) {
  size_t entries = 0, text = 0;
  for (; given && given[entries]; entries++) {
    if (strncmp(given[entries], "LD_", 3) == 0 || strncmp(given[entries], "PATH=", 5) == 0) text += strlen(given[entries]);
  }
  const char* const parts[] = {preload, folders, programs};
  for (const char* part : parts) text += part ? strlen(part) + 32 : 0;
  return (entries + kMost + 8) * sizeof(char*) + text;
}

// The environment that a child gets: the given one with what is missing of a rehearsal's.
char** fill(char* memory, char* const* given) {
  const List lists[] = {
      {"LD_PRELOAD", preload, ": ", false, true},
      {"LD_LIBRARY_PATH", folders, ":;", true, true},
      {"PATH", programs, ":", false, false},
  };
  size_t entries = 0;
  while (given && given[entries]) entries++;
  char** made = reinterpret_cast<char**>(memory);
  char* text = memory + (entries + kMost + 8) * sizeof(char*);
  size_t count = 0;
  bool seen[3] = {}, has_cards = false;
  for (size_t i = 0; i < entries; i++) {
    made[count] = given[i];
    for (int l = 0; l < 3; l++) {
      const size_t length = strlen(lists[l].name);
      if (!lists[l].part || strncmp(given[i], lists[l].name, length) != 0 || given[i][length] != '=') continue;
      seen[l] = true;
      const char* value = given[i] + length + 1;
      const size_t part = strlen(lists[l].part);
      const bool is_first = strncmp(value, lists[l].part, part) == 0 && (!value[part] || strchr(lists[l].separators, value[part]));
      if (is_first || (!lists[l].first && has_part(value, lists[l].part, lists[l].separators))) continue;
      made[count] = text;
      text += sprintf(text, "%s=%s%s%s", lists[l].name, lists[l].part, *value ? ":" : "", value) + 1;
    }
    has_cards |= strncmp(given[i], kNoCards, sizeof "CUDA_VISIBLE_DEVICES") == 0;
    count++;
  }
  for (int l = 0; l < 3; l++) {
    if (seen[l] || !lists[l].part || !lists[l].always) continue;
    made[count++] = text;
    text += sprintf(text, "%s=%s", lists[l].name, lists[l].part) + 1;
  }
  for (int i = 0; i < settings_count; i++) {
    const size_t name = strcspn(settings[i], "=") + 1;
    bool is_there = false;
    for (size_t j = 0; j < entries && !is_there; j++) is_there = strncmp(given[j], settings[i], name) == 0;
    if (!is_there) made[count++] = const_cast<char*>(settings[i]);
  }
  if (drivers && !has_cards) made[count++] = const_cast<char*>(kNoCards);
  made[count] = nullptr;
  return made;
}

#define FILLED(given) (preload ? fill(static_cast<char*>(alloca(room_for(given))), given) : const_cast<char**>(given))

// For what starts a shell inside the C library, with this process's own environment.
void fill_own() {
  if (!preload) return;
  char** filled = FILLED(environ);
  for (char** entry = filled; *entry; entry++) {
    char name[64];
    const size_t length = strcspn(*entry, "=");
    if (length >= sizeof name || strcmp(*entry, kNoCards) == 0) continue;
    memcpy(name, *entry, length);
    name[length] = 0;
    const char* before = getenv(name);
    if (!before || strcmp(before, *entry + length + 1) != 0) setenv(name, *entry + length + 1, 1);
  }
}

// The C library's functions behind those of this name that stand below. Found at the start, since a child between fork and exec must not
// look for them.
#define EACH_BEHIND(of) \
  of(dlopen) of(dlmopen) of(execve) of(execvpe) of(fexecve) of(execveat) of(posix_spawn) of(posix_spawnp) of(system) of(popen)
#define BEHIND(name) decltype(&::name) behind_##name = nullptr;
EACH_BEHIND(BEHIND)
#undef BEHIND
#define FIND(name) behind(behind_##name, #name)

// ---- the driver, by whatever path ----------------------------------------------------------------------------------------------------------

bool is_library(const char* name, const char* library) {
  const size_t length = strlen(library);
  return strncmp(name, library, length) == 0 && (name[length] == 0 || name[length] == '.');
}

// Ours in its place, where a driver is opened.
const char* driver_for(const char* file) {
  static char cuda[4096], nvml[4096];
  if (!file || !drivers) return file;
  const char* slash = strrchr(file, '/');
  const char* name = slash ? slash + 1 : file;
  if (is_library(name, "libcuda.so")) {
    snprintf(cuda, sizeof cuda, "%s/libcuda.so.1", drivers);
    return cuda;
  }
  // The runtime is in the same library; a real one, which who calls it by ctypes opens, would find no driver. Wheels have it as libcudart-d0da41ae.so.12.
  const bool is_runtime = strncmp(name, "libcudart", strlen("libcudart")) == 0 && strstr(name, ".so");
  if (is_library(name, "libnvidia-ml.so") || is_runtime) {
    snprintf(nvml, sizeof nvml, "%s/libnvidia-ml.so.1", drivers);
    return nvml;
  }
  return file;
}

// ---- Python --------------------------------------------------------------------------------------------------------------------------------

struct PyObject;
using Hook = int (*)(const char*, PyObject*, void*);
PyObject* (*tuple_item)(PyObject*, ssize_t);
const char* (*utf8)(PyObject*);
PyObject* (*new_dictionary)();
int (*set_item)(PyObject*, const char*, PyObject*);
PyObject* (*new_text)(const char*);
PyObject* (*item)(PyObject*, const char*);
PyObject* (*run_text)(const char*, int, PyObject*, PyObject*, void*);
PyObject* (*run_file)(FILE*, const char*, int, PyObject*, PyObject*, int, void*);
PyObject* (*add_module)(const char*);
PyObject* (*import_module)(const char*);
PyObject* (*call_method)(PyObject*, const char*, const char*, ...);
PyObject* (*names_of)(PyObject*);
void (*clear_error)();
void (*fetch_error)(PyObject**, PyObject**, PyObject**);
void (*normalize_error)(PyObject**, PyObject**, PyObject**);
int (*set_trace)(PyObject*, PyObject*);
PyObject* none;

template <typename Function>
bool find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function;
}

// Run before the script, in no module's namespace. Nothing that goes wrong here may leave the script to itself.
constexpr char kBegin[] = R"(
import os, sys
try:
    path, known, library = sys.path[:], set(sys.modules), os.path.dirname(getattr(os, "__file__", ""))
    # The script's folder, which comes first, may have a json.py.
    own = [each for each in path if each == library or os.path.basename(each) == "lib-dynload" or each.endswith(".zip")]
    sys.path[:] = [folder, *(own if library in path else path)]
    try:
        try:
            import vramlab_rehearsal
        except (EOFError, ValueError, TypeError):
            # A full disk may have cut what Python keeps of it compiled, which Python itself never mends.
            os.remove(os.path.join(folder, "vramlab_rehearsal", "__pycache__", f"__init__.{sys.implementation.cache_tag}.pyc"))
            import vramlab_rehearsal
    finally:
        sys.path[:] = path
    vramlab_rehearsal.imports.leave_to_the_script(known)
    vramlab_rehearsal.begin()
except BaseException as error:
    reason = f"the rehearsal could not be set up in {sys.executable or 'Python'}: {type(error).__name__}: {error}"
    try:
        # The program ends all processes as soon as the file is there, so that it must come whole.
        with open(os.path.join(session, f"failed.{os.getpid()}"), "w", errors="replace") as file:
            file.write(reason)
        os.rename(file.name, os.path.join(session, "failed"))
    finally:
        os.write(2, f"vramlab: {reason}\n".encode("utf-8", "replace"))
        os._exit(2)
)";

constexpr int kFileInput = 257;

void begin_python() {
  char folder[4096];
  snprintf(folder, sizeof folder, "%s/python", setting("VRAMLAB_REHEARSAL_LIBRARIES"));
  PyObject* names = new_dictionary();
  if (names) {
    set_item(names, "folder", new_text(folder));
    set_item(names, "session", new_text(setting("VRAMLAB_REHEARSAL")));
    if (run_text(kBegin, kFileInput, names, names, nullptr)) return;
  }
  static const char kSaid[] = "vramlab: the rehearsal could not be set up in this Python\n";
  if (write(2, kSaid, sizeof kSaid - 1)) _exit(2);
  _exit(2);
}

// Waits to be copied, and in a copy runs the script, the module or the text, as Python does.
constexpr char kWait[] = R"(
with open(f"{folder}/python/vramlab_rehearsal/zygote.py", encoding="utf-8") as file:
    exec(compile(file.read(), file.name, "exec"))
script, module, text = wait(folder, int(owner))
)";
[[noreturn]] void wait_to_be_copied() {
  PyObject* names = new_dictionary();
  set_item(names, "folder", new_text(setting("VRAMLAB_REHEARSAL_LIBRARIES")));
  set_item(names, "owner", new_text(setting("VRAMLAB_WAITS")));
  if (!run_text(kWait, kFileInput, names, names, nullptr)) _exit(2);
  const char *script = utf8(item(names, "script")), *module = utf8(item(names, "module")), *text = utf8(item(names, "text"));
  PyObject* main = names_of(add_module("__main__"));
  PyObject *kind = nullptr, *raised = nullptr, *trace = nullptr, *result = nullptr;
  if (*module) {
    PyObject* runpy = import_module("runpy");
    result = runpy ? call_method(runpy, "_run_module_as_main", "si", module, 1) : nullptr;
  } else if (*script) {
    FILE* file = fopen(script, "rb");
    result = file ? run_file(file, script, kFileInput, main, main, 1, nullptr) : nullptr;
  } else {
    result = run_text(text, kFileInput, main, main, nullptr);
  }
  if (!result) {
    fetch_error(&kind, &raised, &trace);
    normalize_error(&kind, &raised, &trace);
    if (raised && trace) set_trace(raised, trace);
  }
  set_item(names, "raised", raised ? raised : none);
  run_text("end(raised)", kFileInput, names, names, nullptr);
  _exit(1);
}

bool has_begun = false;

int audit(const char* event, PyObject* arguments, void*) {
  if (has_begun) return 0;
  if (!preload) {
    has_begun = strncmp(event, "cpython.run_", 12) == 0;
    if (has_begun) wait_to_be_copied();
    return 0;
  }
  if (strcmp(event, "import") == 0) {
    PyObject* item = tuple_item(arguments, 0);
    const char* name = item ? utf8(item) : nullptr;
    if (!name) clear_error();
    if (!name) return 0;
    // Where Python looks for a sitecustomize, which may import torch in ways that say nothing here.
    const bool is_torch = strncmp(name, "torch", 5) == 0 && (!name[5] || name[5] == '.');
    if (!is_torch && strcmp(name, "sitecustomize") != 0) return 0;
  } else if (strncmp(event, "cpython.run_", 12) != 0) {
    return 0;
  }
  has_begun = true;
  begin_python();
  return 0;
}

void follow_python() {
  int (*add)(Hook, void*);
  if (!find(add, "PySys_AddAuditHook") || !find(tuple_item, "PyTuple_GetItem") || !find(utf8, "PyUnicode_AsUTF8") ||
      !find(new_dictionary, "PyDict_New") || !find(set_item, "PyDict_SetItemString") || !find(new_text, "PyUnicode_DecodeFSDefault") ||
      !find(run_text, "PyRun_StringFlags") || !find(clear_error, "PyErr_Clear")) {
    return;
  }
  const bool waits = !preload && find(item, "PyDict_GetItemString") && find(run_file, "PyRun_FileExFlags") && find(none, "_Py_NoneStruct") &&
      find(add_module, "PyImport_AddModule") && find(import_module, "PyImport_ImportModule") && find(call_method, "PyObject_CallMethod") &&
      find(names_of, "PyModule_GetDict") && find(fetch_error, "PyErr_Fetch") && find(normalize_error, "PyErr_NormalizeException") &&
      find(set_trace, "PyException_SetTraceback");
  if (waits) add(audit, nullptr);
  if (!preload) return;
  // That this Python was here, for the answer where there is nothing else to tell.
  char path[4096];
  snprintf(path, sizeof path, "%s/%d.python", setting("VRAMLAB_REHEARSAL"), getpid());
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) close(file);
  if (!has_begun) add(audit, nullptr);
}

__attribute__((constructor)) void start() {
  const int before = errno;
#define FIND_NOW(name) FIND(name);
  EACH_BEHIND(FIND_NOW)
  settings_count = 0;
  remember_settings();
  if (setting("VRAMLAB_WAITS")) follow_python();
  if (preload) {
    take(kNoCards);
    const bool is_first = stand_guard();
    if (drivers) hide_gpus();
    if (setting("VRAMLAB_REHEARSAL_HELD")) hold_writes(setting("VRAMLAB_REHEARSAL_HELD"), is_first);
    follow_python();
  }
  errno = before;
}

}  // namespace

// In a copy of a Python that waited, with the environment of its rehearsal.
extern "C" void vramlab_start_again() {
  start();
  begin_python();
}

namespace {

// The arguments of execl and its kin, up to the null that ends them.
#define WORDS(words, first, last)                                                    \
  va_list all;                                                                       \
  va_start(all, first);                                                              \
  size_t count = 1;                                                                  \
  while (va_arg(all, char*)) count++;                                                \
  va_end(all);                                                                       \
  char** words = static_cast<char**>(alloca((count + 1) * sizeof(char*)));           \
  va_start(all, first);                                                              \
  words[0] = const_cast<char*>(first);                                               \
  for (size_t i = 1; i <= count; i++) words[i] = va_arg(all, char*);                 \
  last;                                                                              \
  va_end(all)

}  // namespace

extern "C" {

// A library's own search path is found by who calls, so these jump and leave no frame of ours.
#if defined(__clang__)
#define JUMP [[clang::musttail]]
#define JUMPS
#else
#define JUMP
#define JUMPS __attribute__((optimize("O2")))
#endif
JUMPS void* dlopen(const char* file, int mode) {
  FIND(dlopen);
  file = held_path(driver_for(file));
  JUMP return behind_dlopen(file, mode);
}
JUMPS void* dlmopen(Lmid_t space, const char* file, int mode) {
  FIND(dlmopen);
  file = held_path(driver_for(file));
  JUMP return behind_dlmopen(space, file, mode);
}

int execve(const char* path, char* const* words, char* const* environment) {
  path = held_path(path);
  if (!may_start(path, false)) return -1;
  return FIND(execve)(path, words, FILLED(environment));
}
int execv(const char* path, char* const* words) { return execve(path, words, environ); }
int execvpe(const char* file, char* const* words, char* const* environment) {
  file = held_path(file);
  if (!may_start(file, true)) return -1;
  return FIND(execvpe)(file, words, FILLED(environment));
}
int execvp(const char* file, char* const* words) { return execvpe(file, words, environ); }
int fexecve(int file, char* const* words, char* const* environment) {
  return FIND(fexecve)(file, words, FILLED(environment));
}
int execveat(int folder, const char* path, char* const* words, char* const* environment, int flags) {
  return FIND(execveat)(folder, path, words, FILLED(environment), flags);
}
int execl(const char* path, const char* first, ...) {
  WORDS(words, first, (void)0);
  return execve(path, words, environ);
}
int execlp(const char* file, const char* first, ...) {
  WORDS(words, first, (void)0);
  return execvpe(file, words, environ);
}
int execle(const char* path, const char* first, ...) {
  char** environment = nullptr;
  WORDS(words, first, environment = va_arg(all, char**));
  return execve(path, words, environment);
}
int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions, const posix_spawnattr_t* attributes,
                char* const* words, char* const* environment) {
  path = held_path(path);
  if (!may_start(path, false)) return errno;
  return FIND(posix_spawn)(process, path, actions, attributes, words, FILLED(environment));
}
int posix_spawnp(pid_t* process, const char* file, const posix_spawn_file_actions_t* actions, const posix_spawnattr_t* attributes,
                 char* const* words, char* const* environment) {
  file = held_path(file);
  if (!may_start(file, true)) return errno;
  return FIND(posix_spawnp)(process, file, actions, attributes, words, FILLED(environment));
}
int system(const char* line) {
  fill_own();
  return FIND(system)(line);
}
FILE* popen(const char* line, const char* mode) {
  fill_own();
  return FIND(popen)(line, mode);
}
}
