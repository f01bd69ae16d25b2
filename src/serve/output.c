/* The output thread: passes messages to answers, in order. */
#include <stdlib.h>

#include "core/thread.h"
#include "serve/server_internal.h"

void carry_serve_append(carry_serve_messages *to, carry_serve_message *message) {
    message->next = NULL;
    *(to->last != NULL ? &to->last->next : &to->first) = message;
    to->last = message;
}

void carry_serve_post(carry_lm_server *s, carry_serve_messages *messages) {
    if (messages->first == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&s->lock);
    *(s->messages.last != NULL ? &s->messages.last->next : &s->messages.first) = messages->first;
    s->messages.last = messages->last;
    (void)pthread_cond_signal(&s->has_message);
    (void)pthread_mutex_unlock(&s->lock);
    *messages = (carry_serve_messages){0};
}

void carry_serve_post_one(carry_lm_server *s, carry_serve_message *message) {
    carry_serve_messages one = {0};
    carry_serve_append(&one, message);
    carry_serve_post(s, &one);
}

/* Waits for messages and returns all of them; NULL if the server is stopping. */
static carry_serve_message *take_messages(carry_lm_server *s) {
    (void)pthread_mutex_lock(&s->lock);
    while (s->messages.first == NULL && !s->is_stopping) {
        (void)pthread_cond_wait(&s->has_message, &s->lock);
    }
    carry_serve_message *first = s->messages.first;
    s->messages = (carry_serve_messages){0};
    (void)pthread_mutex_unlock(&s->lock);
    return first;
}

static void *write_answers(void *user) {
    carry_lm_server *s = user;
    for (carry_serve_message *message; (message = take_messages(s)) != NULL;) {
        for (carry_serve_message *next; message != NULL; message = next) {
            next = message->next;
            carry_serve_answer_take(message->answer, message);
        }
    }
    return NULL;
}

bool carry_serve_start_output(carry_lm_server *s) {
    s->has_output = carry_thread_start(&s->output, write_answers, s) == 0;
    return s->has_output;
}

void carry_serve_stop_output(carry_lm_server *s) {
    if (s->has_output) {
        (void)pthread_join(s->output, NULL);
        s->has_output = false;
    }
}
