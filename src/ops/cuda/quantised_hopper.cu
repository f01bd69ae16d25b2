/* Products of up to 8 sequences with quantised matrices in tiles; of one by quantised_hopper_one.cu if it supports the
   product, and of more than 8 by quantised_hopper_many.cu. */
#include "ops/cuda/quantised_launch_hopper.cuh"

namespace quantised {

template <class F> static carry_status put_form(const launch_place &place, const carry_tile_product &p, int sequences) {
    ring_plan plan;
    bool fits = false;
    if (sequences <= 8 && plan_ring<F, 1, 12>(&plan, p, sequences, place.ordinal)) {
        if (sequences == 1) {
            const carry_status status = put_one(place, p, plan, &fits);
            if (fits) {
                return status;
            }
        }
        return p.is_second ? put_kernel(place, ring_beside<F>, 12, p, plan, sequences, true)
                           : put_kernel(place, ring<F, 1, 12>, 12, p, plan, sequences, true);
    }
    if (sequences > 8) {
        const carry_status status = put_many(place, p, sequences, &fits);
        if (fits || status != CARRY_OK) {
            return status;
        }
    }
    if (sequences == 1) {
        carry_ctx *ctx = place.ctx;
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "a product with a quantised matrix of %d columns", p.columns);
    }
    const int half = sequences > 8 ? (sequences / 2 + 7) / 8 * 8 : sequences / 2; /* too many columns for all */
    carry_tile_product rest = p;
    rest.x = (const char *)p.x + (size_t)(half * p.x_stride) * (p.x_is_wide ? sizeof(float) : sizeof(uint16_t));
    rest.y = (char *)p.y + (size_t)(half * p.y_stride) * (p.y_is_wide ? sizeof(float) : sizeof(uint16_t));
    rest.base = p.base != NULL ? (const char *)p.base + ((const char *)rest.y - (const char *)p.y) : NULL;
    rest.h = p.h != NULL ? p.h + half * p.y_stride : NULL;
    CARRY_TRY(put_form<F>(place, p, half));
    return put_form<F>(place, rest, sequences - half);
}

} // namespace quantised

extern "C" int carry_cuda_tile_product_registers(void) {
    int least = 255;
    for (int format = 0; carry_quant_format_at(format) != NULL; format++) {
        const int own = quantised::with_form(
            format, [](auto form) { return quantised::registers_of(quantised::ring_beside<decltype(form)>); });
        least = min(least, min(own, quantised::one_registers(format)));
    }
    return least;
}

extern "C" bool carry_cuda_tile_product_works(int ordinal) {
    int major = 0;
    cudaFuncAttributes attributes;
    /* A build may lack code for Hopper; in code for other architectures the kernel is empty and needs few registers. */
    const bool is_there =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess && major >= 9 &&
        cudaFuncGetAttributes(&attributes, quantised::ring<quantised::fp8_wide, 1, 12>) == cudaSuccess &&
        attributes.numRegs > 32;
    (void)cudaGetLastError();
    return is_there;
}

extern "C" carry_status carry_cuda_tile_product(carry_ctx *ctx, int ordinal, carry_stream *stream,
                                                const carry_tile_product *product, int sequences, bool overlaps) {
    const quantised::launch_place place = {ctx, ordinal, stream, overlaps};
    return quantised::with_form(
        product->format, [&](auto form) { return quantised::put_form<decltype(form)>(place, *product, sequences); });
}
