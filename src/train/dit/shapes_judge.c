/* Finds the centre and the colour of the bright pixels. On a torus a centre is an angle: the direction of the sum of
   unit vectors at the pixels' angles, each weighted by the brightness of the pixel. Steps from frame to frame take the
   shorter way. */
#include "train/dit/shapes_judge.h"

#include <math.h>
#include <stddef.h>

#define TURN 6.283185307179586
#define BRIGHT 0.3    /* threshold above the background, for the brightest channel */
#define FEWEST 0.01   /* minimum fraction of bright pixels */
#define STILL 0.35    /* relative to the speed: slower counts as still */
#define MOVING 0.5    /* relative to the speed: faster counts as moving */
#define SIDEWAYS 0.35 /* relative to the larger component of the step: above it, the step has no direction */

typedef struct sight {
    double weight, area;
    double rgb[3];
    double across[2], along[2]; /* sums of cosines and sines */
} sight;

static sight look(const float *frame, int64_t side) {
    static const float ground[3] = CARRY_SHAPE_GROUND;
    sight s = {0};
    for (int64_t i = 0; i < side * side; i++) {
        double over = 0.0;
        for (int64_t c = 0; c < 3; c++) {
            over = fmax(over, (double)(frame[c * side * side + i] - ground[c]));
        }
        if (!(over > BRIGHT)) {
            continue;
        }
        const double x = TURN * ((double)(i % side) + 0.5) / (double)side;
        const double y = TURN * ((double)(i / side) + 0.5) / (double)side;
        s.weight += over;
        s.area += 1.0;
        s.across[0] += over * cos(x);
        s.across[1] += over * sin(x);
        s.along[0] += over * cos(y);
        s.along[1] += over * sin(y);
        for (int64_t c = 0; c < 3; c++) {
            s.rgb[c] += over * (double)frame[c * side * side + i];
        }
    }
    return s;
}

/* The shorter way between two angles, in pixels. */
static double step_of(const double from[2], const double to[2], int64_t side) {
    double turned = atan2(to[1], to[0]) - atan2(from[1], from[0]);
    turned -= TURN * floor(turned / TURN + 0.5);
    return turned * (double)side / TURN;
}

static int nearest_colour(const double rgb[3], double *distance) {
    int best = -1;
    float known[3];
    for (int i = 0; carry_shape_colour(i, known) != NULL; i++) {
        double off = 0.0;
        for (int c = 0; c < 3; c++) {
            off += (rgb[c] - (double)known[c]) * (rgb[c] - (double)known[c]);
        }
        if (best < 0 || sqrt(off) < *distance) {
            best = i;
            *distance = sqrt(off);
        }
    }
    return best;
}

static int direction_of(double right, double down, double speed) {
    const double larger = fmax(fabs(right), fabs(down));
    const double smaller = fmin(fabs(right), fabs(down));
    int step[2];
    if (larger >= STILL * speed && (larger < MOVING * speed || smaller > SIDEWAYS * larger)) {
        return -1;
    }
    for (int i = 0; carry_shape_direction(i, step) != NULL; i++) {
        const bool is_still = step[0] == 0 && step[1] == 0;
        const double along = right * step[0] + down * step[1];
        if (larger < STILL * speed ? is_still : along == larger) {
            return i;
        }
    }
    return -1;
}

carry_shapes_verdict carry_shapes_judge(const float *frames, int64_t count, int64_t side, double speed) {
    carry_shapes_verdict v = {.colour = -1, .direction = -1};
    double rgb[3] = {0};
    double weight = 0.0;
    double rights = 0.0;
    double downs = 0.0;
    int64_t steps = 0;
    sight before = {0};
    for (int64_t f = 0; f < count; f++) {
        const sight s = look(frames + f * 3 * side * side, side);
        const bool shows = s.area >= FEWEST * (double)(side * side);
        v.frames_shown += shows;
        v.area += s.area / (double)count;
        weight += s.weight;
        for (int c = 0; c < 3; c++) {
            rgb[c] += s.rgb[c];
        }
        if (shows && before.weight > 0.0) {
            rights += step_of(before.across, s.across, side);
            downs += step_of(before.along, s.along, side);
            steps++;
        }
        before = shows ? s : (sight){0};
    }
    if (2 * v.frames_shown <= count || steps == 0) {
        return v;
    }
    for (int c = 0; c < 3; c++) {
        rgb[c] /= weight;
    }
    v.colour = nearest_colour(rgb, &v.distance);
    v.right = rights / (double)steps;
    v.down = downs / (double)steps;
    v.direction = direction_of(v.right, v.down, speed);
    return v;
}
