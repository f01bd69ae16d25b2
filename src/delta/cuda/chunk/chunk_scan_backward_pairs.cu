/* A scan: backward, the segments' pairs. */
#include "delta/cuda/chunk/chunk_host.cuh"

namespace DELTA_CHUNK {

SCANS(, 1, 3, PAIR, BACK_PAIR, 1)

} // namespace DELTA_CHUNK
