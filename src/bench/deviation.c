/* Compares results with a float64 reference. */
#include "core/tensor.h"
#include "bench/deviation.h"

#include <math.h>
#include <string.h>

carry_deviation carry_deviation_of(const char *name, const carry_tensor *result, const double *reference,
                                   double bound) {
    int64_t count = carry_tensor_count(result);
    double largest = 0.0;
    double magnitude = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs(carry_tensor_at(result, i) - reference[i]);
        if (isnan(difference) && !isnan(largest)) {
            largest = NAN;
        }
        largest = difference > largest ? difference : largest;
        magnitude = fabs(reference[i]) > magnitude ? fabs(reference[i]) : magnitude;
    }
    double relative = magnitude > 0.0 ? largest / magnitude : largest;
    return (carry_deviation){.tensor = name, .error = relative, .absolute = largest, .bound = bound};
}

void carry_poison(const carry_tensor *tensor) {
    memset(tensor->data, 0xff,
           (size_t)carry_tensor_count(tensor) * carry_dtype_size(tensor->dtype)); /* a NaN in every type */
}

double carry_unit_roundoff(carry_dtype dtype) {
    return dtype == CARRY_F32 ? 0x1p-24 : dtype == CARRY_BF16 ? 0x1p-8 : 0x1p-11;
}
