/* A scan: backward, 256 keys, 64 values a block. */
#include "delta/cuda/chunk/chunk_host.cuh"

namespace DELTA_CHUNK {

SCANS(, 1, 2, KEEP, BACK, 2)

} // namespace DELTA_CHUNK
