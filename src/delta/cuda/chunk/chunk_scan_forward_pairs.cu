/* A scan: forward, the segments' pairs. */
#include "delta/cuda/chunk/chunk_host.cuh"

namespace DELTA_CHUNK {

SCANS(, 1, 3, PAIR, PAIR, 1)

} // namespace DELTA_CHUNK
