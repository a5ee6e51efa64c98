/* A folder for a test's files that goes away with all in it, and checks on error messages. */
#ifndef TT_TESTS_SUPPORT_SCRATCH_H
#define TT_TESTS_SUPPORT_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/error.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

static char scratch_folder[256];

/* A path below the scratch folder; valid for the next thirty-two calls. */
static UNUSED const char *scratch_path(const char *name)
{
    static char paths[32][512];
    static int next;
    char *path = paths[next++ % 32];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
    return path;
}

static UNUSED void scratch_remove(const char *path)
{
    struct stat status;
    if (lstat(path, &status) != 0) {
        return;
    }
    if (S_ISDIR(status.st_mode)) {
        DIR *folder = opendir(path);
        for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
                char below[1024];
                snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
                scratch_remove(below);
            }
        }
        closedir(folder);
        rmdir(path);
    } else {
        unlink(path);
    }
}

static UNUSED int scratch_setup(void **state)
{
    (void)state;
    const char *root = getenv("TMPDIR");
    snprintf(scratch_folder, sizeof scratch_folder, "%s/ttrain_test_XXXXXX",
             root != NULL ? root : "/tmp");
    return mkdtemp(scratch_folder) == NULL ? -1 : 0;
}

static UNUSED int scratch_teardown(void **state)
{
    (void)state;
    scratch_remove(scratch_folder);
    return 0;
}

static UNUSED void scratch_write(const char *path, const void *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* A whole file, ended by a 0; free with free(). */
static UNUSED char *scratch_read(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("%s cannot be opened", path);
    }
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(size + 1);
    assert_int_equal(fread(bytes, 1, size, file), size);
    bytes[size] = '\0';
    fclose(file);
    if (length != NULL) {
        *length = size;
    }
    return bytes;
}

static UNUSED void expect_success(tt_status status, const tt_error *error)
{
    if (status != TT_OK) {
        fail_msg("%s", error->message);
    }
}

/* From here on no file of this process grows beyond `bytes`, as on a full disk; 0 lifts the limit.
 */
static UNUSED void scratch_limit_files(uint64_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes > 0 ? (rlim_t)bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The call failed, and its message is one line that holds `fragment`. */
static UNUSED void expect_failure(tt_status status, const tt_error *error, const char *fragment)
{
    assert_int_not_equal(status, TT_OK);
    assert_int_equal(status, error->status);
    if (strstr(error->message, fragment) == NULL || strchr(error->message, '\n') != NULL) {
        fail_msg("expected one line with \"%s\", found \"%s\"", fragment, error->message);
    }
}

#endif
