/* A criterion as a tree, built by criteria_parse.c and evaluated by criteria.c. */
#ifndef CARRY_LAB_CRITERIA_TREE_H
#define CARRY_LAB_CRITERIA_TREE_H

#include "lab/experiment/criteria.h"

#define MOST_NODES 64
#define MOST_FILTERS 8
#define WORD 40

typedef enum worst { LEAST, LARGEST } worst;

typedef struct measure {
    const char *name, *about;
    int methods; /* number of methods it names */
    worst worst;
    bool timed; /* a time, which does not count if the result was wrong */
    double (*value)(const carry_outcome *of, const carry_outcome *against);
} measure;

typedef enum node_kind {
    NUMBER,
    ADD,
    SUBTRACT,
    MULTIPLY,
    DIVIDE,
    NEGATE,
    LOG2,
    MEASURE,
    MIN,
    MAX,
    MEAN,
    GROWS
} node_kind;

typedef struct filter {
    char key[WORD], value[WORD]; /* value "": key is a word of the problem */
} filter;

typedef struct node {
    node_kind kind;
    int left, right; /* nodes */
    double number;
    const measure *measure;
    char method[2][WORD];
    int column;       /* column of its name */
    char along[WORD]; /* the size in grows() */
    int filters;
    filter filter[MOST_FILTERS];
} node;

struct carry_criterion {
    char text[CARRY_CRITERION_TEXT];
    node nodes[MOST_NODES];
    int count;
    int left, right;
    char compare[3];
};

#endif
