// Where the compiler's part of the CUDA toolkit is not installed: the wheels have the runtime's headers, and those include this one.
#pragma once
#include "crt/host_defines.h"
