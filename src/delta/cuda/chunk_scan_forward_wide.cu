/* A scan: forward, 128 values a block. */
#include "delta/cuda/chunk_host.cuh"

namespace delta_chunk {

SCANS(, 2, 2, FORWARD, FORWARD)

} // namespace delta_chunk
