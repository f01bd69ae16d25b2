/* Videos of moving coloured shapes, the training data of the demo's model.

   There is one shape on a dark background, which moves by a fixed number of pixels per frame or stands still. The
   picture is a torus: a shape that leaves on one side enters on the other, so that a stream may go on for ever. A video
   may change at the start of a chunk to another form, colour or direction, from the position that the shape then has,
   since prompts change in a stream. Some videos that start in the middle begin with an empty chunk, so that a stream
   that lost its shape finds one again. Edges are antialiased: a pixel's share of the shape's colour is the fraction of
   the pixel that the shape covers, to first order. */
#ifndef CARRY_TRAIN_SHAPES_H
#define CARRY_TRAIN_SHAPES_H

#include <stdbool.h>
#include <stdint.h>

/* X(name, red, green, blue) */
#define CARRY_COLOUR_LIST(X)       \
    X(red, 0.95f, 0.12f, 0.10f)    \
    X(green, 0.10f, 0.85f, 0.15f)  \
    X(blue, 0.12f, 0.25f, 0.95f)   \
    X(yellow, 0.95f, 0.90f, 0.10f) \
    X(purple, 0.75f, 0.15f, 0.90f) \
    X(white, 0.95f, 0.95f, 0.95f)

/* X(name, words, right, down): unit steps */
#define CARRY_DIRECTION_LIST(X)    \
    X(left, "moving left", -1, 0)  \
    X(right, "moving right", 1, 0) \
    X(up, "moving up", 0, -1)      \
    X(down, "moving down", 0, 1)   \
    X(still, "standing still", 0, 0)

enum { CARRY_SHAPE_FORMS = 3, CARRY_SHAPE_COLOURS = 6, CARRY_SHAPE_DIRECTIONS = 5 };

typedef struct carry_shape {
    int form, colour, direction; /* form CARRY_SHAPE_NOTHING: only the background */
} carry_shape;

#define CARRY_SHAPE_NOTHING (-1)

#define CARRY_SHAPE_GROUND \
    { 0.05f, 0.05f, 0.07f }

const char *carry_shape_form(int form); /* such as "circle"; NULL past the end, like the next two */
const char *carry_shape_colour(int colour, float rgb[3]);
const char *carry_shape_direction(int direction, int step[2]); /* "left"; step: right, down */
/* "red circle moving left" */
#define CARRY_SHAPE_CAPTION 64
const char *carry_shape_caption(char text[CARRY_SHAPE_CAPTION], carry_shape shape);

/* All words of captions, one line for each kind. */
#define CARRY_SHAPE_WORDS 256
const char *carry_shape_words(char text[CARRY_SHAPE_WORDS]);

/* Draws the shape with its centre at x, y (pixels from the left and the top, of any size: the picture is a torus) on
   the background: [3, side, side], 0 to 1. Its size depends on the side. */
void carry_shape_draw(float *pixels, int64_t side, carry_shape shape, double x, double y);

/* Options of a video. */
typedef struct carry_shapes_options {
    int64_t side;   /* pixels */
    int64_t frames; /* of the video */
    int64_t chunk;  /* frames of a chunk; a video may change only at its start */
    double speed;   /* pixels per frame */
    double starts;  /* fraction of videos that begin like a stream, near the middle; the others begin anywhere */
    double changes, unnamed; /* fraction of videos that change, and fraction without a caption */
} carry_shapes_options;

typedef struct carry_shapes_video {
    carry_shape shape[2]; /* before and after the change */
    int64_t change;       /* the first frame with the second shape; equal to `frames` if there is no change */
    int64_t blank;        /* empty frames at the start */
    bool is_start, is_unnamed;
    double x, y; /* position in the first frame that shows the shape */
} carry_shapes_video;

/* The video depends only on the seed and the index. */
carry_shapes_video carry_shapes_video_of(const carry_shapes_options *options, uint64_t seed, int64_t index);
/* Returns the shape that a frame shows, and its position. */
carry_shape carry_shapes_at(const carry_shapes_options *options, const carry_shapes_video *video, int64_t frame,
                            double *x, double *y);

#endif
