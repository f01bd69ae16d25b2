/* Graphs: the driver captures a part of a stream and turns it into a graph that is launched as a whole.

   Capture is relaxed: memory and handles that a first call sets up outside the stream do not break the recording. */
#include "device/cuda.h"

extern "C" carry_status carry_cuda_graph_begin(carry_ctx *ctx, int ordinal, carry_stream *stream) {
    if (stream == NULL) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "CUDA device %d: its default queue cannot be recorded: make a stream with carry_stream_new",
                          ordinal);
    }
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeRelaxed),
                   "a recording cannot begin");
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_graph_end(carry_ctx *ctx, carry_graph **graph, int ordinal, carry_stream *stream) {
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t ready = NULL;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaStreamEndCapture((cudaStream_t)stream, &recorded), "a recording failed");
    cudaError_t error = cudaGraphInstantiate(&ready, recorded, 0);
    (void)cudaGraphDestroy(recorded); /* the instantiated graph has its own copy */
    CARRY_CUDA_TRY(error, "a graph cannot be made from a recording");
    error = cudaGraphUpload(ready, (cudaStream_t)stream); /* the first launch then allocates nothing */
    if (error != cudaSuccess) {
        (void)cudaGraphExecDestroy(ready);
    }
    CARRY_CUDA_TRY(error, "a graph cannot be loaded");
    *graph = (carry_graph *)ready;
    return CARRY_OK;
}

extern "C" carry_status carry_cuda_graph_launch(carry_ctx *ctx, int ordinal, carry_graph *graph, carry_stream *stream) {
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_CUDA_TRY(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream), "a graph cannot be launched");
    return CARRY_OK;
}

extern "C" void carry_cuda_graph_free(carry_ctx *ctx, int ordinal, carry_graph *graph) {
    (void)ctx;
    (void)ordinal;
    (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
    (void)cudaGetLastError();
}
