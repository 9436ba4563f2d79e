/* The leanest tool server there is: every 200 bytes that arrive are a call, and its answer is the argument with the
   call's id put in. Built by bench/attached.py when a C compiler is there. */
#include <string.h>
#include <unistd.h>

enum { FRAME = 200, ID_AT = 22, ID_DIGITS = 7, FRAMES = 320 };

int main(int argc, char **argv)
{
    static char calls[FRAME * FRAMES], answers[FRAME * FRAMES];
    size_t have = 0;
    ssize_t got;

    if (argc != 2 || strlen(argv[1]) != FRAME - 1)
        return 2;
    for (int i = 0; i < FRAMES; i++) {
        memcpy(answers + i * FRAME, argv[1], FRAME - 1);
        answers[i * FRAME + FRAME - 1] = '\n';
    }
    while ((got = read(0, calls + have, sizeof calls - have)) > 0) {
        size_t whole = (have + (size_t)got) / FRAME;
        for (size_t i = 0; i < whole; i++)
            memcpy(answers + i * FRAME + ID_AT, calls + i * FRAME + ID_AT, ID_DIGITS);
        for (size_t done = 0; done < whole * FRAME;) {
            ssize_t written = write(1, answers + done, whole * FRAME - done);
            if (written < 0)
                return 1;
            done += (size_t)written;
        }
        have += (size_t)got - whole * FRAME;
        memmove(calls, calls + whole * FRAME, have);
    }
    return got < 0;
}
