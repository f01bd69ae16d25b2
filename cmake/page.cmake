# The page of a stream as a C array: index.html with its style and its scripts in it. Called as
#   cmake -DFROM=src/stream/page -DTO=page.c -P page.cmake
file(READ ${FROM}/index.html page)
file(READ ${FROM}/page.css style)
set(script "")
foreach(part charts page controls) # in this order
  file(READ ${FROM}/${part}.js text)
  string(APPEND script "${text}")
endforeach()
string(REPLACE "/* STYLE */" "${style}" page "${page}")
string(REPLACE "/* SCRIPT */" "${script}" page "${page}")
string(HEX "${page}" bytes)
string(LENGTH "${bytes}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${TO} "/* Made from src/stream/page by cmake/page.cmake. */
#include \"stream/server/server_internal.h\"

const size_t carry_page_size = ${size};
const unsigned char carry_page[] = {
${bytes}
};
")
