/* The leanest server there is: whatever arrives goes back. Built by bench/relay.py when a C compiler is there. */
#include <unistd.h>

int main(void)
{
    static char buffer[65536];
    ssize_t got;

    while ((got = read(0, buffer, sizeof buffer)) > 0)
        for (ssize_t done = 0; done < got;) {
            ssize_t written = write(1, buffer + done, (size_t)(got - done));
            if (written < 0)
                return 1;
            done += written;
        }
    return got < 0;
}
