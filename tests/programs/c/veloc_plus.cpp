// The header in C++, and what comes before VELOC_Init: it fails, VELOC_Finalize as well.

#include "veloc.h"

int main() {
    int (*protect)(int, void *, size_t, size_t) = VELOC_Mem_protect;
    return protect(1, nullptr, 0, 0) == VELOC_FAILURE && VELOC_Finalize(1) == VELOC_FAILURE ? 0 : 1;
}
