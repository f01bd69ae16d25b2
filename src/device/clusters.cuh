/* Clusters of blocks, for code that is also compiled for GPUs without them; there the kernels are empty. */
#ifndef CARRY_DEVICE_CLUSTERS_CUH
#define CARRY_DEVICE_CLUSTERS_CUH

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define CARRY_CLUSTER(blocks)
#else
#define CARRY_HAS_CLUSTERS
#define CARRY_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#endif

#endif
