/* Loses sixteen bytes, which the address sanitizer must report (tests/CMakeLists.txt, leaks_are_found). */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    char *volatile lost = malloc(16);
    (void)printf("%d\n", lost != NULL);
    lost = NULL;
    return 0;
}
