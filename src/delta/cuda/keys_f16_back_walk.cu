/* keys_back_walk.cu for f16. */
#define CARRY_DELTA_F16
#include "delta/cuda/keys_back_walk.cu"
