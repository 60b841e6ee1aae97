// CUDA on a CPU: types, built-in variables, device functions and the runtime API, over fibers (emu/runtime.cpp).
#pragma once
#include "kernelward/emu/hooks.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <array>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernelward/emu/types.h"
#include "kernelward/emu/runtime.h"
#include "kernelward/emu/api.h"
#include "kernelward/emu/math.h"
#include "kernelward/emu/half.h"
#include "kernelward/emu/warp.h"
#include "kernelward/emu/atomics.h"
