// The header in C++, and calls before VELOC_Init: they fail, and so does VELOC_Finalize.

#include "veloc.h"

int main() {
    int (*protect)(int, void *, size_t, size_t) = VELOC_Mem_protect;
    return protect(1, nullptr, 0, 0) == VELOC_FAILURE && VELOC_Finalize(1) == VELOC_FAILURE ? 0 : 1;
}
