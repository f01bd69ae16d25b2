/* A scan: forward, 128 values a block. */
#include "delta/cuda/chunk/chunk_host.cuh"

namespace DELTA_CHUNK {

SCANS(, 2, 2, FORWARD, FORWARD, 1)

} // namespace DELTA_CHUNK
