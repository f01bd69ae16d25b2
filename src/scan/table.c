/* The only list of scan algorithms. */
#include "scan/algorithm.h"

extern const carry_scan_algorithm carry_scan_sequential, carry_scan_hillis_steele, carry_scan_blelloch,
    carry_scan_cyclic, carry_scan_matmul4, carry_scan_matmul8, carry_scan_matmul16, carry_scan_matmul_log,
    carry_scan_chunkwise;

static const carry_scan_algorithm *const table[] = {
    &carry_scan_sequential, &carry_scan_chunkwise, &carry_scan_hillis_steele,
    &carry_scan_blelloch,   &carry_scan_cyclic,    &carry_scan_matmul4,
    &carry_scan_matmul8,    &carry_scan_matmul16,  &carry_scan_matmul_log,
};

const carry_scan_algorithm *carry_scan_at(int index) {
    return index >= 0 && index < (int)(sizeof table / sizeof table[0]) ? table[index] : NULL;
}

bool carry_scan_always(const carry_scan_shape *shape, char *why, size_t why_size) {
    (void)shape;
    (void)why;
    (void)why_size;
    return true;
}

const char *carry_scan_name(int index) {
    const carry_scan_algorithm *algorithm = carry_scan_at(index);
    return algorithm != NULL ? algorithm->name : NULL;
}

const char *carry_scan_about(int index) {
    const carry_scan_algorithm *algorithm = carry_scan_at(index);
    return algorithm != NULL ? algorithm->about : NULL;
}
