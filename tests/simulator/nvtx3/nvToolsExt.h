/* The part of the NVTX interface that ttrain uses, for the simulator. Ranges are only counted, to
 * find those that end without having begun. */
#ifndef TT_SIMULATOR_NVTOOLSEXT_H
#define TT_SIMULATOR_NVTOOLSEXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Both return the number of ranges around this one on this thread; negative on failure. */
int nvtxRangePushA(const char *message);
int nvtxRangePop(void);
void nvtxMarkA(const char *message);

#ifdef __cplusplus
}
#endif

#endif
