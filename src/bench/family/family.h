/* A problem family, as bench, check and plan use it. There is one const struct per family; family_table.c is the only
   list, and a new family appears in every verb by adding one file and one line. Families that use folders beside or
   above this one are registered by the program when it starts. */
#ifndef CARRY_LAB_FAMILY_H
#define CARRY_LAB_FAMILY_H

#include "bench/problem.h"
#include "bench/support.h"

/* Work, traffic and times of one run of the chosen method. */
typedef struct carry_counts {
    double flops;     /* operations done by this method */
    double bytes;     /* minimum bytes to read and write: inputs and outputs once */
    int64_t products; /* number of matrix products; 0 if not meaningful */
    double workspace; /* bytes that this method needs in addition to inputs and outputs */
    double tokens;    /* 0: the problem has no tokens */
    /* For a model that was trained to the end, else 0: */
    double perplexity;
    double busy; /* share of some of its steps in which the device worked, 0 to 1; 0: unknown */
    double cost; /* device seconds of the whole training */
    /* For generation, else 0: seconds until every text had its first token; tokens per second of prompts and of
       texts. */
    double first, prompt_rate, text_rate;
    /* For a stream, where the time of a run is the period of its chunks: */
    double overlap;                           /* the overlap score, or NaN */
    double slower_stage;                      /* seconds per chunk of the slower stage; 0: not a stream */
    double denoise, recompute, clean, decode; /* seconds per chunk of its parts; 0: no such part */
    /* For problems of several ranks: */
    double received;  /* bytes received from other ranks, maximum over ranks */
    double waited;    /* share of its time in which a rank could only wait, maximum over ranks; below 0: unknown */
    double predicted; /* seconds that the planner predicts; 0: no prediction */
    /* Share of the slowest rank's time that would be saved if no rank waited: 1 - (longest work of any rank) / (that
       time); below 0: unknown. Set by the bench. */
    double exposed;
} carry_counts;

/* The error of one tensor of the result, compared with the float64 reference. */
typedef struct carry_deviation {
    const char *tensor;
    double error;    /* largest difference over the reference's largest magnitude; NaN if the result has a NaN */
    double absolute; /* largest difference */
    double bound;    /* derived from type and length */
} carry_deviation;

#define CARRY_DEVIATIONS 8
#define CARRY_COPIES 64 /* maximum number of input sets */

/* The first member of an instance that carry_family_open makes. `parse` sets device and only. */
typedef struct carry_instance {
    carry_ctx *ctx;
    uint64_t seed;
    int device;                    /* where it runs (carry/device.h) */
    int copies, current;           /* number of input sets; index of the last one used */
    char only[CARRY_PROBLEM_WORD]; /* the method named in the problem, or "" */
    struct carry_timer *timer;     /* timer of a GPU, else NULL */
} carry_instance;

typedef struct carry_family {
    const char *name, *about;
    const char *takes;   /* for messages: the words, sizes and keys it accepts */
    const char *example; /* an example problem */
    carry_dtype type;    /* type of problems that name none */
    carry_support support;
    bool is_simulated; /* times are computed, not measured: this machine's ceilings do not apply */
    /* The number of ranks that solve the problem together, or 0. Each of them then has its own instance, and open,
       plan, choose, run and compare are collectives over problem->comm with the same status on all ranks. plan with
       problem->comm NULL makes an instance that only describes the problem. ranks NULL: problems are for one rank. */
    int (*ranks)(carry_problem *problem);
    const struct carry_family *over_ranks; /* the family of problems with this name and a size p; NULL: this one */
    /* For carry_family_open and carry_family_plan. An instance has instance_bytes, zeroed, and begins with
       carry_instance. parse refuses a problem before memory is allocated for it. make_set makes inputs; NULL: no
       inputs. make_plan makes the plan for base.only or the planner's choice; NULL: `choose` does that. unmeasured:
       why planning measures nothing, or NULL. release frees the members; NULL: nothing to free. */
    size_t instance_bytes;
    carry_status (*parse)(void *instance, carry_problem *problem);
    carry_status (*make_set)(void *instance, int index, uint64_t seed);
    carry_status (*make_plan)(void *instance, bool measure);
    const char *unmeasured;
    void (*release)(void *instance);
    /* For families without instance_bytes: open makes `copies` sets of inputs from the seed and chooses no method
       yet. plan makes an instance without inputs and its plan, for the method named in the problem or the planner's
       choice. */
    carry_status (*open)(carry_ctx *ctx, void **instance, carry_problem *problem, uint64_t seed, int copies);
    carry_status (*plan)(carry_ctx *ctx, void **instance, carry_problem *problem, bool measure);
    void (*close)(void *instance);
    double (*bytes)(const void *instance); /* bytes of one set of inputs and outputs */
    const char *(*method)(int index);      /* NULL past the end */
    /* CARRY_EUNSUPPORTED, with the reason in the context, if the method does not apply. NULL: the planner's choice. */
    carry_status (*choose)(void *instance, const char *method);
    const char *(*chosen)(const void *instance);
    const char *(*about_plan)(const void *instance);
    const char *(*only)(const void *instance); /* the method named in the problem, or NULL */
    carry_status (*run)(void *instance);       /* runs on the next set */
    /* Measures the seconds of one run; NULL: the bench reads the clock before and after `run`. */
    carry_status (*time)(void *instance, double *seconds);
    int (*device)(const void *instance); /* the device it runs on (carry/device.h); NULL: the CPU */
    carry_counts (*counts)(const void *instance);
    /* Runs once with outputs poisoned by NaN, and compares them. */
    carry_status (*compare)(void *instance, carry_deviation deviations[CARRY_DEVIATIONS], int *count);
    /* Values of the chosen method's last run, one per step, such as the losses of a training. NULL: the family has
       no curve. */
    const double *(*curve)(const void *instance, int *count);
    /* Saves the chosen method in the wisdom as this problem's plan, with the problem's chunk and the number of
       threads to use (0: all of the context's). NULL: the family's planner does not use the wisdom. */
    carry_status (*remember)(void *instance, double seconds, int threads);
} carry_family;

/* family_table.c: the families by index; NULL past the end. Registered families follow those of the table. Register
   at most CARRY_FAMILIES of them, before any thread is started. */
#define CARRY_FAMILIES 8
void carry_family_register(const carry_family *family);
const carry_family *carry_family_at(int index);
carry_status carry_family_find(carry_ctx *ctx, const carry_family **family, const char *name);
/* Finds the family of a problem. */
carry_status carry_family_of(carry_ctx *ctx, const carry_family **family, carry_problem *problem);

/* family_table.c: open makes an instance of a problem with inputs; plan makes one without inputs but with a plan. */
carry_status carry_family_open(const carry_family *family, carry_ctx *ctx, void **instance, carry_problem *problem,
                               uint64_t seed, int copies);
carry_status carry_family_plan(const carry_family *family, carry_ctx *ctx, void **instance, carry_problem *problem,
                               bool measure);
void carry_family_close(const carry_family *family, void *instance);

/* The `only` and `device` functions of families with instance_bytes. */
const char *carry_instance_only(const void *instance);
int carry_instance_device(const void *instance);

#endif
