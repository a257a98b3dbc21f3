// c10 includes this name too.
#pragma once
#include "cuda_runtime_api.h"
