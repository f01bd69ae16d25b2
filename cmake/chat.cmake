# The files of the chat page as C arrays. Called as
#   cmake -DFROM=src/serve/page -DTO=chat.c -P chat.cmake
set(text "/* Made from src/serve/page by cmake/chat.cmake. */\n#include \"serve/page.h\"\n")
function(add_array name)
  set(bytes "")
  foreach(file ${ARGN})
    file(READ ${FROM}/${file} more HEX)
    string(APPEND bytes "${more}")
  endforeach()
  string(LENGTH "${bytes}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  set(text "${text}
const size_t carry_chat_${name}_size = ${size};
const unsigned char carry_chat_${name}[] = {
${bytes}
};
" PARENT_SCOPE)
endfunction()
add_array(html index.html)
add_array(css chat.css)
add_array(js element.js highlight.js inline.js markdown.js store.js server.js message.js view.js settings.js chat.js) # in this order
add_array(icon icon.svg)
file(WRITE ${TO} "${text}")
