// Forked children of a program with an open session. Include this after a header with CHECK.
#ifndef FORKED_H
#define FORKED_H

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

// Ends a child whose call did not fail with `status`; its exit status is the line number.
#define REFUSED_WITH(call, status)                  \
    do {                                            \
        if ((call) != (status)) _exit(__LINE__);    \
    } while (0)

// Is this the child? A child that waits for a rank that cannot answer is ended. The parent returns when the child has ended successfully.
static int is_forked_child(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(30);
        return 1;
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}

#endif
