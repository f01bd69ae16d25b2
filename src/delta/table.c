/* The only list of the delta rule's methods. */
#include "delta/dense.h"
#include "delta/plan.h"

extern const carry_delta_method carry_delta_cpu_recurrent, carry_delta_cpu_chunk16, carry_delta_cpu_chunk32,
    carry_delta_cpu_chunk64, carry_delta_cpu_chunk128;

static const carry_delta_method *const table[] = {
    &carry_delta_cpu_recurrent, &carry_delta_cpu_chunk16,  &carry_delta_cpu_chunk32,
    &carry_delta_cpu_chunk64,   &carry_delta_cpu_chunk128, NULL,
};

#if defined(CARRY_HAVE_CUDA)
extern const carry_delta_method carry_delta_cuda_recurrent, carry_delta_cuda_tiles64, carry_delta_cuda_keys64,
    carry_delta_cuda_chunk64;
extern const carry_delta_dense carry_delta_cuda_dense;
#endif

static const carry_delta_method *const gpu_table[] = {
#if defined(CARRY_HAVE_CUDA)
    &carry_delta_cuda_recurrent,
    &carry_delta_cuda_tiles64,
    &carry_delta_cuda_keys64,
    &carry_delta_cuda_chunk64,
#endif
    NULL,
};

const carry_delta_dense *carry_delta_dense_on_gpu(void) {
#if defined(CARRY_HAVE_CUDA)
    return &carry_delta_cuda_dense;
#else
    return NULL;
#endif
}

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]) - 1)

const carry_delta_method *carry_delta_at(bool on_gpu, int index) {
    int count = on_gpu ? COUNT(gpu_table) : COUNT(table);
    return index < 0 || index >= count ? NULL : on_gpu ? gpu_table[index] : table[index];
}

const char *carry_delta_name(int device, int index) {
    const carry_delta_method *method = carry_delta_at(device != 0, index);
    return method != NULL ? method->name : NULL;
}

const char *carry_delta_about(int device, int index) {
    const carry_delta_method *method = carry_delta_at(device != 0, index);
    return method != NULL ? method->about : NULL;
}
