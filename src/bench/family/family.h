/* A problem family, as bench, check and plan use it. There is one const struct per family; family_table.c is the only
   list, and a new family appears in every verb by adding one file and one line. Families that use folders beside or
   above this one are registered by the program when it starts. */
#ifndef CARRY_LAB_FAMILY_H
#define CARRY_LAB_FAMILY_H

#include "bench/problem.h"
#include "bench/support.h"

/* Work, traffic and times of one run of the chosen method. */
typedef struct carry_counts {
    double flops;     /* done by this method */
    double bytes;     /* the least that must be read and written: inputs and outputs once */
    int64_t products; /* matrix products done, 0 where not meaningful */
    double workspace; /* bytes that this method asks for beside inputs and outputs */
    double tokens;    /* 0: the problem has no tokens */
    /* Of a model that was trained to its end, else 0: */
    double perplexity;
    double busy; /* share of some of its steps in which its device worked, 0 to 1; 0: not known */
    double cost; /* seconds of its device that the whole training took */
    /* Of generation, else 0: seconds until every text had its first token, tokens a second of prompts and of texts. */
    double first, prompt_rate, text_rate;
    /* Of a stream, whose runs' time is the period of its chunks: */
    double overlap;                           /* the overlap score, or NaN */
    double slower_stage;                      /* seconds of the slower stage a chunk; 0: not a stream */
    double denoise, recompute, clean, decode; /* seconds of its blocks a chunk; 0: no such block */
    /* Of problems of several ranks: */
    double received;  /* bytes that a rank got from others, of the rank that got most */
    double waited;    /* share of a rank's time in which it could only wait, where that is most; below 0: unknown */
    double predicted; /* seconds that the planner expects of it; 0: it does not say */
    double exposed; /* share by which the slowest rank's time exceeds the longest work of any; likewise. The bench's */
} carry_counts;

/* How far one tensor of the result is from the float64 reference. */
typedef struct carry_deviation {
    const char *tensor;
    double error;    /* largest difference over the reference's largest magnitude; NaN when the result has one */
    double absolute; /* largest difference */
    double bound;    /* derived from type and length */
} carry_deviation;

#define CARRY_DEVIATIONS 8
#define CARRY_COPIES 64 /* sets of inputs, at most */

/* The first member of an instance that carry_family_open makes. parse sets device and only. */
typedef struct carry_instance {
    carry_ctx *ctx;
    uint64_t seed;
    int device;                    /* where it runs (carry/device.h) */
    int copies, current;           /* sets of inputs; the one of the last run */
    char only[CARRY_PROBLEM_WORD]; /* the method that the problem asks for, or "" */
    struct carry_timer *timer;     /* of a GPU, else NULL */
} carry_instance;

typedef struct carry_family {
    const char *name, *about;
    const char *takes;   /* for messages: words, sizes and keys */
    const char *example; /* a problem */
    carry_dtype type;    /* of problems that name none */
    carry_support support;
    bool is_simulated; /* times are computed, not measured: no ceiling of this machine bounds them */
    /* How many ranks work on the problem together, or 0. Each of them then has an instance of its own, and open, plan,
       choose, run and compare are collectives over problem->comm that end alike on all of them. plan without ranks
       (comm NULL) looks at the problem alone. NULL: every problem is one rank's. */
    int (*ranks)(carry_problem *problem);
    const struct carry_family *over_ranks; /* the family of problems of this name with a size p; NULL: the same */
    /* For carry_family_open and the like. An instance has instance_bytes, zeroed, and begins with carry_instance. parse
       refuses a problem before memory is allocated for it. make_set makes inputs; NULL: no inputs. make_plan makes the
       plan for the planner's choice or base.only; NULL: choose does. unmeasured: why planning measures nothing, or
       NULL. release frees the members; NULL: nothing to free. */
    size_t instance_bytes;
    carry_status (*parse)(void *instance, carry_problem *problem);
    carry_status (*make_set)(void *instance, int index, uint64_t seed);
    carry_status (*make_plan)(void *instance, bool measure);
    const char *unmeasured;
    void (*release)(void *instance);
    /* Or its own, without instance_bytes. Inputs made from seed, `copies` sets of them to rotate through; nothing is
       chosen yet. plan: an instance without inputs whose plan is made, by the planner or the method that the problem
       asks for. */
    carry_status (*open)(carry_ctx *ctx, void **instance, carry_problem *problem, uint64_t seed, int copies);
    carry_status (*plan)(carry_ctx *ctx, void **instance, carry_problem *problem, bool measure);
    void (*close)(void *instance);
    double (*bytes)(const void *instance); /* one set of inputs and outputs */
    const char *(*method)(int index);      /* NULL past the end */
    /* CARRY_EUNSUPPORTED when it does not apply; the context's message says why. NULL: the planner's choice. */
    carry_status (*choose)(void *instance, const char *method);
    const char *(*chosen)(const void *instance);
    const char *(*about_plan)(const void *instance);
    const char *(*only)(const void *instance); /* the method that the problem itself asks for, or NULL */
    carry_status (*run)(void *instance);       /* on the next set */
    /* Seconds of one run; NULL: the clock before and after run says it. */
    carry_status (*time)(void *instance, double *seconds);
    int (*device)(const void *instance); /* where it runs (carry/device.h); NULL: on the CPU */
    carry_counts (*counts)(const void *instance);
    /* Runs once on poisoned outputs and compares. */
    carry_status (*compare)(void *instance, carry_deviation deviations[CARRY_DEVIATIONS], int *count);
    /* Values of the chosen method's last run, one a step: the losses of a training. NULL: the family has no curve. */
    const double *(*curve)(const void *instance, int *count);
    /* Puts the chosen method into the wisdom as this problem's plan, with the problem's chunk and the threads that it
       is to use (0: all of the context's). NULL: the family's planner does not ask there. */
    carry_status (*remember)(void *instance, double seconds, int threads);
} carry_family;

/* family_table.c; NULL past the end. Registered families follow those of the table. Register before any thread is
   started; at most CARRY_FAMILIES of them. */
#define CARRY_FAMILIES 8
void carry_family_register(const carry_family *family);
const carry_family *carry_family_at(int index);
carry_status carry_family_find(carry_ctx *ctx, const carry_family **family, const char *name);
/* The one that a problem is of. */
carry_status carry_family_of(carry_ctx *ctx, const carry_family **family, carry_problem *problem);

/* family_table.c: an instance of a problem, with inputs, or without them and with a plan. */
carry_status carry_family_open(const carry_family *family, carry_ctx *ctx, void **instance, carry_problem *problem,
                               uint64_t seed, int copies);
carry_status carry_family_plan(const carry_family *family, carry_ctx *ctx, void **instance, carry_problem *problem,
                               bool measure);
void carry_family_close(const carry_family *family, void *instance);

/* `only` and `device` of families with instance_bytes. */
const char *carry_instance_only(const void *instance);
int carry_instance_device(const void *instance);

#endif
