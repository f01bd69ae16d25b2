/* The chat page at "/". The build embeds its files in the program (cmake/chat.cmake). */
#ifndef CARRY_SERVE_PAGE_H
#define CARRY_SERVE_PAGE_H

#include <stddef.h>

extern const unsigned char carry_chat_html[], carry_chat_css[], carry_chat_js[], carry_chat_icon[];
extern const size_t carry_chat_html_size, carry_chat_css_size, carry_chat_js_size, carry_chat_icon_size;

#endif
