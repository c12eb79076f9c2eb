//! The functions of libibverbs, looked up by name when the library is opened.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::error::{Lacking, Unavailable};
use crate::ffi::*;

macro_rules! table {
    (
        $(#[$doc:meta])*
        $table:ident {
            required { $($name:ident : $symbol:literal fn($($argument:ty),*) $(-> $result:ty)?;)* }
            optional { $($later:ident : $since:literal fn($($parameter:ty),*) $(-> $outcome:ty)?;)* }
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            /// What `ibv_get_device_list` finds in the count it is to fill: the real library ignores it, a fake knows itself by it.
            pub(crate) tag: c_int,
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(crate) $later: Option<unsafe extern "C" fn($($parameter),*) $(-> $outcome)?>,)*
        }

        impl $table {
            /// Looks up every function.
            ///
            /// # Safety
            ///
            /// The library must be libibverbs, or have functions of the same names and signatures; it must stay loaded.
            pub(crate) unsafe fn find(library: &Library) -> Result<Self, Unavailable> {
                Ok(Self {
                    tag: 0,
                    $($name: {
                        // SAFETY: the caller vouches for the signature behind the name.
                        let symbol = unsafe { library.get($symbol.as_bytes()) };
                        *symbol.map_err(|error| Unavailable {
                            what: Lacking::Symbol($symbol.to_owned()),
                            reason: format!("{error}; the library is older than te needs, or not libibverbs"),
                        })?
                    },)*
                    $($later: {
                        // SAFETY: as above.
                        unsafe { library.get($since.as_bytes()) }.ok().map(|symbol| *symbol)
                    },)*
                })
            }
        }
    };
}

table! {
    /// Every function that is called by name. Polling and posting go through the context instead, see
    /// [`ibv_context_ops`].
    Symbols {
        required {
            get_device_list: "ibv_get_device_list" fn(*mut c_int) -> *mut *mut ibv_device;
            free_device_list: "ibv_free_device_list" fn(*mut *mut ibv_device);
            get_device_name: "ibv_get_device_name" fn(*mut ibv_device) -> *const c_char;
            open_device: "ibv_open_device" fn(*mut ibv_device) -> *mut ibv_context;
            close_device: "ibv_close_device" fn(*mut ibv_context) -> c_int;
            query_device: "ibv_query_device" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
            query_port: "ibv_query_port" fn(*mut ibv_context, u8, *mut c_void) -> c_int;
            query_gid: "ibv_query_gid" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
            query_pkey: "ibv_query_pkey" fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
            get_async_event: "ibv_get_async_event" fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
            ack_async_event: "ibv_ack_async_event" fn(*mut ibv_async_event);
            alloc_pd: "ibv_alloc_pd" fn(*mut ibv_context) -> *mut ibv_pd;
            dealloc_pd: "ibv_dealloc_pd" fn(*mut ibv_pd) -> c_int;
            reg_mr: "ibv_reg_mr" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
            dereg_mr: "ibv_dereg_mr" fn(*mut ibv_mr) -> c_int;
            create_comp_channel: "ibv_create_comp_channel" fn(*mut ibv_context) -> *mut ibv_comp_channel;
            destroy_comp_channel: "ibv_destroy_comp_channel" fn(*mut ibv_comp_channel) -> c_int;
            create_cq: "ibv_create_cq" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
            destroy_cq: "ibv_destroy_cq" fn(*mut ibv_cq) -> c_int;
            get_cq_event: "ibv_get_cq_event" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
            ack_cq_events: "ibv_ack_cq_events" fn(*mut ibv_cq, c_uint);
            create_qp: "ibv_create_qp" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
            modify_qp: "ibv_modify_qp" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
            query_qp: "ibv_query_qp" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
            destroy_qp: "ibv_destroy_qp" fn(*mut ibv_qp) -> c_int;
            fork_init: "ibv_fork_init" fn() -> c_int;
            wc_status_str: "ibv_wc_status_str" fn(u32) -> *const c_char;
        }
        optional {
            is_fork_initialized: "ibv_is_fork_initialized" fn() -> u32;
            query_gid_ex: "_ibv_query_gid_ex" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
            reg_mr_iova2: "ibv_reg_mr_iova2" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
            reg_dmabuf_mr: "ibv_reg_dmabuf_mr" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        }
    }
}
