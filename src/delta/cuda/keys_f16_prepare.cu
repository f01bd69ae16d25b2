/* keys_prepare.cu for f16. */
#define CARRY_DELTA_F16
#include "delta/cuda/keys_prepare.cu"
