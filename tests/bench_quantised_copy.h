/* Copies and reads of as many bytes as a matrix has, beside which bench_quantised shows its products. */
#ifndef CARRY_TESTS_BENCH_QUANTISED_COPY_H
#define CARRY_TESTS_BENCH_QUANTISED_COPY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues a kernel with blocks_each blocks for each multiprocessor, which copies `bytes`, a multiple of 16, or only
   reads them if `to` is NULL. overlaps: the next kernel may start before it has ended. result: 4 bytes on the device.
   Returns a cudaError_t. */
int bench_stream_bytes(const void *from, void *to, size_t bytes, int blocks_each, int overlaps, int ordinal,
                       void *result, void *stream);

#ifdef __cplusplus
}
#endif
#endif
