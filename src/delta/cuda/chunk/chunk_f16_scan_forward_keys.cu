/* chunk_scan_forward_keys.cu for f16. */
#define CARRY_DELTA_F16
#include "delta/cuda/chunk/chunk_scan_forward_keys.cu"
