/*
 * windlass/umem.h: object caches, with the interface of illumos' libumem. See windlass-umem(3).
 *
 * Link with `pkg-config --cflags --libs windlass-umem`: the program's malloc is windlass' then, too.
 */
#ifndef WINDLASS_UMEM_H
#define WINDLASS_UMEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Without memory: NULL and ENOMEM, or what the callback of umem_nofail_callback says. */
#define UMEM_DEFAULT 0x0000
#define UMEM_NOFAIL 0x0100

/* What that callback returns: allocate again, or exit(status). */
#define UMEM_CALLBACK_RETRY 0
#define UMEM_CALLBACK_EXIT(status) (0x100 | ((status) & 0xff))

/* Bytes of a cache's name that are kept. */
#define UMEM_CACHE_NAMELEN 31

/*
 * Flags of a cache. UMC_NOMAGAZINE: free objects go straight back to their slab. UMC_NODEBUG, UMC_NOTOUCH: debugging words have no effect.
 * UMC_NOHASH has none.
 */
#define UMC_NOTOUCH 0x00010000
#define UMC_NODEBUG 0x00020000
#define UMC_NOMAGAZINE 0x00040000
#define UMC_NOHASH 0x00080000

typedef struct umem_cache umem_cache_t;
typedef struct vmem vmem_t;

/* Brings an object into its constructed state; flags are UMEM_DEFAULT or UMEM_NOFAIL, for allocations of its own. Not 0: it cannot. */
typedef int umem_constructor_t(void *object, void *private_data, int flags);
/* Undoes that, before the memory goes back. */
typedef void umem_destructor_t(void *object, void *private_data);
/* Memory is short: gives back objects that are not needed. */
typedef void umem_reclaim_t(void *private_data);
typedef int umem_nofail_callback_t(void);

/*
 * A cache of objects of `size` bytes (at most 2 MiB) at multiples of `align` (a power of two up to 64 KiB; 0: what a type of this size
 * needs). The callbacks may be NULL; `source` must be. NULL with EINVAL, ENOMEM (too large) or EAGAIN (no memory for the cache itself).
 */
umem_cache_t *umem_cache_create(const char *name, size_t size, size_t align, umem_constructor_t *constructor,
    umem_destructor_t *destructor, umem_reclaim_t *reclaim, void *private_data, vmem_t *source, int cflags);
/* The program has freed all objects, and no other thread uses the cache. */
void umem_cache_destroy(umem_cache_t *cache);
void *umem_cache_alloc(umem_cache_t *cache, int flags);
void umem_cache_free(umem_cache_t *cache, void *object);

/* Memory that is freed with the size it was allocated with. NULL for 0 bytes. */
void *umem_alloc(size_t size, int flags);
void *umem_zalloc(size_t size, int flags);
void *umem_alloc_align(size_t size, size_t align, int flags);
void umem_free(void *object, size_t size);
void umem_free_align(void *object, size_t size);

/* NULL: the process exits with status 255. */
void umem_nofail_callback(umem_nofail_callback_t *callback);
/* Calls every cache's reclaim, and gives free memory back to the kernel. */
void umem_reap(void);

#ifdef __cplusplus
}
#endif

#endif
