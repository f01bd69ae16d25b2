/* A scan: forward, 64 values a block. */
#include "delta/cuda/chunk/chunk_host.cuh"

namespace DELTA_CHUNK {

SCANS(, 1, 3, FORWARD, FORWARD, 1)

} // namespace DELTA_CHUNK
