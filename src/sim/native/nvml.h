// What the runtime tells NVML's half of it, and other processes.
#pragma once
#include <cstddef>

// A card has so many bytes in use by this process, its context among them. Written where the rehearsal's other processes and its nvidia-smi
// find it: a file of one number a card.
void vramlab_dry_tell(int device, size_t used);
