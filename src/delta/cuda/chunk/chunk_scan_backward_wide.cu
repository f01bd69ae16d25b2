/* A scan: backward, 128 values a block. */
#include "delta/cuda/chunk/chunk_host.cuh"

namespace DELTA_CHUNK {

SCANS(, 2, 2, KEEP, BACK, 1)

} // namespace DELTA_CHUNK
