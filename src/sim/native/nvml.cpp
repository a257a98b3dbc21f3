// NVML of the simulated cards, for monitors (pynvml, gpustat, torch.cuda.utilization) and for c10's out-of-memory message. Memory is what the
// rehearsal's processes have; nothing runs, so what is busy, warm or drawing power is 0; what only real hardware has is 'not supported'.
#include "answers.h"
#include "card.h"
#include "occupancy.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" int vramlab_dry_cards();

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7;

using vramlab::occupancy::each_process;

// A device's handle is its number, from 1 on.
int number_of(const void* device) { return static_cast<int>(reinterpret_cast<intptr_t>(device)) - 1; }
int handle_of(long number, void** device) {
  if (number < 0 || number >= vramlab_dry_cards()) return kInvalidArgument;
  *device = reinterpret_cast<void*>(number + 1);
  return kSuccess;
}

int text(char* out, unsigned room, const char* value) {
  if (std::strlen(value) >= room) return kInsufficientSize;
  std::strcpy(out, value);
  return kSuccess;
}

uint64_t used_of(const void* device) {
  uint64_t used = 0;
  each_process(number_of(device), [&used](int, uint64_t bytes) { used += bytes; });
  used -= std::min(used, vramlab_dry_code_to_come(number_of(device)));
  return used < vramlab_dry_card()->memory ? used : vramlab_dry_card()->memory;
}

struct Process1 {
  unsigned process;
  unsigned long long used;
};
struct Process2 {
  unsigned process;
  unsigned long long used;
  unsigned instance, compute_instance;
};
template <typename Process>
int running(const void* device, unsigned* count, Process* processes) {
  const unsigned room = *count;
  unsigned found = 0;
  each_process(number_of(device), [&](int process, uint64_t used) {
    if (found < room && processes) {
      std::memset(processes + found, 0xff, sizeof *processes);
      processes[found].process = static_cast<unsigned>(process);
      processes[found].used = used;
    }
    found++;
  });
  *count = found;
  return found > room ? kInsufficientSize : kSuccess;
}

}  // namespace

extern "C" {

DONE(nvmlInit) DONE(nvmlInitWithFlags) DONE(nvmlInit_v2) DONE(nvmlShutdown)
const char* nvmlErrorString(int error) {
  switch (error) {
    case kSuccess: return "Success";
    case kInvalidArgument: return "Invalid Argument";
    case kNotSupported: return "Not Supported";
    case kNotFound: return "Not Found";
    case kInsufficientSize: return "Insufficient Size";
    default: return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char* out, unsigned room) { return text(out, room, "580.00.00"); }
int nvmlSystemGetNVMLVersion(char* out, unsigned room) { return text(out, room, "13.580.00.00"); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return is(version, 13000); }
int nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
int nvmlSystemGetProcessName(unsigned process, char* out, unsigned room) {
  char path[64], name[4096] = "";
  std::snprintf(path, sizeof path, "/proc/%u/cmdline", process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return kNotFound;
  const ssize_t length = read(file, name, sizeof name - 1);
  close(file);
  name[length > 0 ? length : 0] = 0;
  return text(out, room, name);
}

int nvmlDeviceGetCount_v2(unsigned* count) { return is(count, vramlab_dry_cards()); }
int nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void** device) { return handle_of(static_cast<long>(number), device); }
int nvmlDeviceGetHandleByIndex(unsigned number, void** device) { return handle_of(static_cast<long>(number), device); }
// A card's address on the bus is its number: 0000:0N:00.0, as cudaDeviceGetPCIBusId has it.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  const char* number = std::strchr(bus, ':');
  return handle_of(number ? std::strtol(number + 1, nullptr, 16) - 1 : -1, device);
}
int nvmlDeviceGetHandleByPciBusId(const char* bus, void** device) { return nvmlDeviceGetHandleByPciBusId_v2(bus, device); }
int nvmlDeviceGetHandleBySerial(const char*, void**) { return kNotFound; }
int nvmlDeviceGetUUID(const void* device, char* out, unsigned room) {
  char uuid[48];
  std::snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-%012x", static_cast<unsigned>(number_of(device)));
  return text(out, room, uuid);
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const char* number = std::strrchr(uuid, '-');
  return handle_of(number ? std::strtol(number + 1, nullptr, 16) : -1, device);
}
int nvmlDeviceGetPciInfo_v3(const void* device, void* out) {
  struct Bus {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char name[32];
  } bus = {};
  bus.bus = static_cast<unsigned>(number_of(device)) + 1;
  std::snprintf(bus.legacy, sizeof bus.legacy, "0000:%02X:00.0", bus.bus & 0xff);
  std::snprintf(bus.name, sizeof bus.name, "00000000:%02X:00.0", bus.bus & 0xff);
  std::memcpy(out, &bus, sizeof bus);
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v2(const void* device, void* out) { return nvmlDeviceGetPciInfo_v3(device, out); }
int nvmlDeviceGetIndex(const void* device, unsigned* number) { return is(number, number_of(device)); }
int nvmlDeviceGetMinorNumber(const void* device, unsigned* number) { return nvmlDeviceGetIndex(device, number); }
int nvmlDeviceGetName(const void*, char* out, unsigned room) { return text(out, room, vramlab_dry_card()->title); }
int nvmlDeviceGetCudaComputeCapability(const void*, int* major, int* minor) {
  *minor = vramlab_dry_card()->minor;
  return is(major, vramlab_dry_card()->major);
}
int nvmlDeviceGetArchitecture(const void*, unsigned* architecture) {
  const int capability = 10 * vramlab_dry_card()->major + vramlab_dry_card()->minor;
  const unsigned volta = 5, turing = 6, ampere = 7, ada = 8, hopper = 9, blackwell = 10;
  return is(architecture, capability < 75 ? volta : capability < 80 ? turing : capability < 89 ? ampere : capability < 90 ? ada
                                                                            : capability < 100 ? hopper : blackwell);
}
int nvmlDeviceGetNumGpuCores(const void*, unsigned* cores) {
  const int capability = 10 * vramlab_dry_card()->major + vramlab_dry_card()->minor;
  return is(cores, static_cast<unsigned>(vramlab_dry_card()->multiprocessors) * (capability <= 80 ? 64 : 128));
}

int nvmlDeviceGetMemoryInfo(const void* device, void* out) {
  const uint64_t total = vramlab_dry_card()->memory, used = used_of(device);
  if (vramlab_dry_asked) vramlab_dry_asked(0, total - used, total, false);
  const unsigned long long memory[3] = {total, total - used, used};
  std::memcpy(out, memory, sizeof memory);
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo_v2(const void* device, void* out) {
  const uint64_t total = vramlab_dry_card()->memory, used = used_of(device);
  if (vramlab_dry_asked) vramlab_dry_asked(0, total - used, total, false);
  // After the version, which the caller has set: total, reserved, free, used.
  const unsigned long long memory[4] = {total, 0, total - used, used};
  std::memcpy(static_cast<char*>(out) + 8, memory, sizeof memory);
  return kSuccess;
}
int nvmlDeviceGetComputeRunningProcesses(const void* device, unsigned* count, Process1* processes) { return running(device, count, processes); }
int nvmlDeviceGetComputeRunningProcesses_v2(const void* device, unsigned* count, Process2* processes) { return running(device, count, processes); }
int nvmlDeviceGetComputeRunningProcesses_v3(const void* device, unsigned* count, Process2* processes) { return running(device, count, processes); }
int nvmlDeviceGetGraphicsRunningProcesses(const void*, unsigned* count, void*) { return is(count, 0); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(const void*, unsigned* count, void*) { return is(count, 0); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(const void*, unsigned* count, void*) { return is(count, 0); }

int nvmlDeviceGetUtilizationRates(const void*, void* out) {
  std::memset(out, 0, 2 * sizeof(unsigned));
  return kSuccess;
}
int nvmlDeviceGetTemperatureV(const void*, void* out) {
  // After version and sensor.
  std::memset(static_cast<char*>(out) + 8, 0, sizeof(int));
  return kSuccess;
}
int nvmlDeviceGetTotalEnergyConsumption(const void*, unsigned long long* joules) { return is(joules, 0); }
int nvmlDeviceGetMigMode(const void*, unsigned* current, unsigned* pending) {
  *pending = 0;
  return is(current, 0);
}
// A card outside a fabric: PyTorch asks before its first expandable segment (`get_fabric_access` in ATen/cuda/PeerToPeerAccess.cpp) and
// takes anything but success for an error. The state comes after the cluster's id of 16 bytes, a status and the clique's id.
int nvmlDeviceGetGpuFabricInfo(const void*, void* out) {
  std::memset(out, 0, 25);
  return kSuccess;
}
int nvmlDeviceGetGpuFabricInfoV(const void* device, void* out) {
  // After the version, which the caller has set.
  return nvmlDeviceGetGpuFabricInfo(device, static_cast<char*>(out) + 4);
}
// Whether two cards can read each other, write there, and by NVLink.
int nvmlDeviceGetP2PStatus(const void*, const void*, int how, int* status) {
  constexpr int kNvlink = 2, kCannot = 1;
  return is(status, how == kNvlink && !vramlab_dry_card()->has_nvlink ? kCannot : 0);
}
#define ZERO(name) \
  int name(const void*, unsigned* value) { return is(value, 0); }
#define ZERO_OF(name) \
  int name(const void*, int, unsigned* value) { return is(value, 0); }
#define ZEROS(name) \
  int name(const void*, unsigned* value, unsigned* period) { return is(value, 0) + is(period, 0); }

// clang-format off
ZERO(nvmlDeviceGetComputeMode) ZERO(nvmlDeviceGetDisplayActive) ZERO(nvmlDeviceGetDisplayMode) ZERO(nvmlDeviceGetPerformanceState)
ZERO(nvmlDeviceGetPersistenceMode) ZERO(nvmlDeviceGetPowerState) ZERO(nvmlDeviceGetPowerUsage)
ZERO_OF(nvmlDeviceGetApplicationsClock) ZERO_OF(nvmlDeviceGetClockInfo) ZERO_OF(nvmlDeviceGetMaxClockInfo) ZERO_OF(nvmlDeviceGetTemperature)
ZEROS(nvmlDeviceGetDecoderUtilization) ZEROS(nvmlDeviceGetEncoderUtilization)

#define NOT_SUPPORTED(name) ANSWERS(name, kNotSupported)
NOT_SUPPORTED(nvmlDeviceGetBAR1MemoryInfo) NOT_SUPPORTED(nvmlDeviceGetBoardId) NOT_SUPPORTED(nvmlDeviceGetBrand)
NOT_SUPPORTED(nvmlDeviceGetClock) NOT_SUPPORTED(nvmlDeviceGetCpuAffinity) NOT_SUPPORTED(nvmlDeviceGetCpuAffinityWithinScope)
NOT_SUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration) NOT_SUPPORTED(nvmlDeviceGetCurrPcieLinkWidth)
NOT_SUPPORTED(nvmlDeviceGetCurrentClocksEventReasons) NOT_SUPPORTED(nvmlDeviceGetCurrentClocksThrottleReasons)
NOT_SUPPORTED(nvmlDeviceGetEccMode) NOT_SUPPORTED(nvmlDeviceGetEnforcedPowerLimit) NOT_SUPPORTED(nvmlDeviceGetFanSpeed)
NOT_SUPPORTED(nvmlDeviceGetFanSpeed_v2) NOT_SUPPORTED(nvmlDeviceGetFieldValues) NOT_SUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration)
NOT_SUPPORTED(nvmlDeviceGetMaxPcieLinkWidth) NOT_SUPPORTED(nvmlDeviceGetMemoryAffinity) NOT_SUPPORTED(nvmlDeviceGetMemoryErrorCounter)
NOT_SUPPORTED(nvmlDeviceGetNumaNodeId) NOT_SUPPORTED(nvmlDeviceGetNvLinkCapability) NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2) NOT_SUPPORTED(nvmlDeviceGetNvLinkState) NOT_SUPPORTED(nvmlDeviceGetNvLinkVersion)
NOT_SUPPORTED(nvmlDeviceGetPcieThroughput) NOT_SUPPORTED(nvmlDeviceGetPowerManagementDefaultLimit)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimit) NOT_SUPPORTED(nvmlDeviceGetPowerManagementLimitConstraints)
NOT_SUPPORTED(nvmlDeviceGetPowerManagementMode) NOT_SUPPORTED(nvmlDeviceGetProcessUtilization) NOT_SUPPORTED(nvmlDeviceGetSamples)
NOT_SUPPORTED(nvmlDeviceGetSerial) NOT_SUPPORTED(nvmlDeviceGetSupportedClocksEventReasons) NOT_SUPPORTED(nvmlDeviceGetTemperatureThreshold)
NOT_SUPPORTED(nvmlDeviceGetTopologyCommonAncestor) NOT_SUPPORTED(nvmlDeviceGetTotalEccErrors) NOT_SUPPORTED(nvmlDeviceGetVbiosVersion)
NOT_SUPPORTED(nvmlDeviceGetViolationStatus) NOT_SUPPORTED(nvmlDeviceSetCpuAffinity)
// clang-format on
}
