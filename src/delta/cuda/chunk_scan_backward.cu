/* A scan: backward, 64 values a block. */
#include "delta/cuda/chunk_host.cuh"

namespace delta_chunk {

SCANS(, 1, 3, KEEP, BACK)

} // namespace delta_chunk
