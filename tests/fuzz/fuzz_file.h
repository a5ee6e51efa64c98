/* A temporary file that holds what the fuzzer made, for readers that take a path. */
#ifndef TT_TESTS_FUZZ_FILE_H
#define TT_TESTS_FUZZ_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char fuzz_path[256];

static void fuzz_remove_file(void)
{
    unlink(fuzz_path);
}

/* The path of a file of these bytes, the same one each time; it is removed at exit. */
static const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int descriptor = -1;
    if (descriptor < 0) {
        const char *folder = getenv("TMPDIR");
        snprintf(fuzz_path, sizeof fuzz_path, "%s/ttrain_fuzz_XXXXXX",
                 folder != NULL ? folder : "/tmp");
        descriptor = mkstemp(fuzz_path);
        atexit(fuzz_remove_file);
    }
    if (descriptor < 0 || ftruncate(descriptor, 0) != 0 ||
        pwrite(descriptor, data, size, 0) != (ssize_t)size) {
        perror(fuzz_path);
        exit(1);
    }
    return fuzz_path;
}

#endif
