/* Shared by the two halves of the emulated runtime. */
#ifndef CARRY_EMULATE_RUNTIME_H
#define CARRY_EMULATE_RUNTIME_H

#include "cuda_runtime.h"

namespace emulate {

/* In fibres.cpp. NULL, or the reason why no GPU would launch this configuration. */
const char *refusal(const config &c);
void run_block(const config &c, const char *name, const std::function<void()> &run, dim3 block);

} // namespace emulate

#endif
