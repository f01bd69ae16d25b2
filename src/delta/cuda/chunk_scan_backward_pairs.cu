/* A scan: backward, the segments' pairs. */
#include "delta/cuda/chunk_host.cuh"

namespace delta_chunk {

SCANS(, 1, 3, PAIR, BACK_PAIR)

} // namespace delta_chunk
