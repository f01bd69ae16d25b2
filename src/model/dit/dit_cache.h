/* The cache of a video transformer and the memory of a forward, inside dit_*.c. */
#ifndef CARRY_MODEL_DIT_CACHE_H
#define CARRY_MODEL_DIT_CACHE_H

#include "device/upload.h"
#include "model/dit/dit_block.h"

#define CARRY_DIT_GRAPHS 64

/* A forward that was called, and recorded when it was called again. */
typedef struct carry_dit_graph {
    uint64_t key, used;      /* key 0: empty */
    carry_graph *graph;      /* NULL: not recorded yet */
    carry_dit_counts counts; /* all-reduces in the graph */
} carry_dit_graph;

struct carry_dit_cache {
    carry_dit *dit;
    carry_dit_cache_options options;
    int64_t rows, columns, per_frame; /* patches */
    int64_t frames, tokens;           /* maximum of one forward */
    int64_t ring;                     /* slots after the sink's */
    int64_t next, top; /* number of the next frame, and its maximum since the last cut: frames from sink up to top -
                          ring - 1 are lost */
    bool has_text;
    int64_t text_rows; /* rows of the text before the padding rows, which are all equal */
    carry_dit_few few; /* for this text; keys 0: too many keys, or not used on this device */
    void *memory;      /* of the device */
    size_t bytes;
    float *positions; /* carry_dit_positions */
    /* State: [blocks slots per_frame, heads head] of this shard, and [blocks text_len, dim]. */
    carry_tensor keys, values, text_keys, text_values;
    /* Memory of a forward: */
    carry_dit_room room;
    carry_fp8_rows codes;              /* carry_dit_fp8_take */
    carry_tensor sums, table, patches; /* f32 */
    int64_t table_start, table_rows;   /* first frame and number of tokens in the table; 0 tokens: empty */
    carry_tensor sinusoid, time, projected, m, shift; /* for every chunk, f32; m: for two blocks; shift: for the head */
    carry_tensor text, text_narrow, text_hidden, text_embedded; /* text_narrow: text in the type of activations */
    /* Inputs that are computed in host memory: the tensors above, or their sources if the device has its own memory. */
    carry_tensor host_table, host_patches, host_sinusoid, host_text;
    void *host;
    carry_upload table_upload, time_upload; /* for a device with its own memory */
    carry_dit_graph graph[CARRY_DIT_GRAPHS];
    uint64_t graph_uses;
    bool no_graph;          /* a recording failed */
    carry_sums *reductions; /* for a mesh; NULL: all-reduces go through the host */
    unsigned char *attention;
    size_t attention_bytes;
};

/* A forward in progress. */
typedef struct carry_dit_chunks {
    carry_dit_cache *cache;
    const carry_dit_chunk *chunk;
    int chunks;
    float bias;
    int64_t tokens;
    int64_t row[CARRY_DIT_CHUNKS + 1]; /* the first token of each chunk, and the end of the last */
} carry_dit_chunks;

int64_t carry_dit_slot_of(const carry_dit_cache *cache, int64_t frame);
/* Sets the runs of cached rows that frames start .. end-1 attend to; returns their number. */
int carry_dit_runs(const carry_dit_cache *cache, int64_t start, int64_t end, float bias,
                   carry_key_run run[CARRY_MAX_KEY_RUNS]);
/* Runs `work` on the model's device: directly when a call is new, recorded when it is repeated, and replayed after
   that. Calls with chunks in host memory, or on a stream that cannot be recorded, always run directly. In a mesh, a new
   call all-reduces through the host, since first launches may wait for the whole GPU and so for another rank; later
   calls all-reduce as work on the device. All ranks of a mesh make the same calls, and so take the same path. */
carry_status carry_dit_run(const carry_dit_chunks *call, carry_status (*work)(const carry_dit_chunks *call));
void carry_dit_forget_graphs(carry_dit_cache *cache);
/* Copies from host memory to the model's device; does nothing on the CPU. */
carry_status carry_dit_cache_bring(const carry_dit_cache *cache, carry_tensor to, carry_tensor from);

#endif
