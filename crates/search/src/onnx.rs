//! The messages of an ONNX file, as far as they are read or written here.
//!
//! Follows `onnx.proto` of the ONNX specification; unused parts are carried as bytes. Decoding drops
//! undeclared fields, so compare [`Message::encoded_len`] with the file before writing one back.

use bytes::Bytes;
pub(super) use prost::Message;

/// `TensorProto.DataType`.
pub(super) const FLOAT: i32 = 1;
pub(super) const UINT8: i32 = 2;
pub(super) const INT8: i32 = 3;
/// `AttributeProto.AttributeType`.
pub(super) const INT: i32 = 2;

/// `ModelProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(int64, optional, tag = "1")]
    pub(super) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(super) producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) producer_version: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub(super) model_version: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<Opset>,
    #[prost(bytes = "vec", repeated, tag = "14")]
    pub(super) metadata_props: Vec<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "25")]
    pub(super) functions: Vec<Vec<u8>>,
}

/// `OperatorSetIdProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Opset {
    #[prost(string, optional, tag = "1")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(super) version: Option<i64>,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<Node>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "11")]
    pub(super) input: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
    #[prost(bytes = "vec", repeated, tag = "13")]
    pub(super) value_info: Vec<Vec<u8>>,
}

/// `ValueInfoProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) value_type: Option<Vec<u8>>,
}

/// `NodeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<Attribute>,
    #[prost(string, optional, tag = "7")]
    pub(super) domain: Option<String>,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub(super) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(super) s: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<Tensor>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub(super) g: Option<Vec<u8>>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub(super) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub(super) strings: Vec<Vec<u8>>,
    #[prost(int32, optional, tag = "20")]
    pub(super) kind: Option<i32>,
    #[prost(string, optional, tag = "21")]
    pub(super) ref_attr_name: Option<String>,
}

/// `TensorProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(super) data_type: Option<i32>,
    #[prost(float, repeated, tag = "4")]
    pub(super) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(super) int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub(super) int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub(super) name: Option<String>,
    /// A slice of the decoded file: weights are not copied.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(super) raw_data: Option<Bytes>,
    #[prost(bytes = "vec", repeated, tag = "13")]
    pub(super) external_data: Vec<Vec<u8>>,
    #[prost(int32, optional, tag = "14")]
    pub(super) data_location: Option<i32>,
}
