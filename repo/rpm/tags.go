package rpm

// Tags of the main header.
const (
	tagSigRegion       = 62
	tagName            = 1000
	tagVersion         = 1001
	tagRelease         = 1002
	tagEpoch           = 1003
	tagSummary         = 1004
	tagDescription     = 1005
	tagBuildTime       = 1006
	tagBuildHost       = 1007
	tagSize            = 1009
	tagVendor          = 1011
	tagLicense         = 1014
	tagPackager        = 1015
	tagGroup           = 1016
	tagURL             = 1020
	tagArch            = 1022
	tagOldFileNames    = 1027
	tagFileModes       = 1030
	tagFileFlags       = 1037
	tagSourceRPM       = 1044
	tagArchiveSize     = 1046
	tagProvideName     = 1047
	tagRequireFlags    = 1048
	tagRequireName     = 1049
	tagRequireVersion  = 1050
	tagConflictFlags   = 1053
	tagConflictName    = 1054
	tagConflictVersion = 1055
	tagChangelogTime   = 1080
	tagChangelogName   = 1081
	tagChangelogText   = 1082
	tagObsoleteName    = 1090
	tagSourcePackage   = 1106
	tagProvideFlags    = 1112
	tagProvideVersion  = 1113
	tagObsoleteFlags   = 1114
	tagObsoleteVersion = 1115
	tagDirIndexes      = 1116
	tagBaseNames       = 1117
	tagDirNames        = 1118
	tagPayloadFormat   = 1124
	tagPayloadComp     = 1125
	tagLongSize        = 5009
	tagFileDigestAlgo  = 5011
	tagRecommendName   = 5046
	tagRecommendVer    = 5047
	tagRecommendFlags  = 5048
	tagSuggestName     = 5049
	tagSuggestVer      = 5050
	tagSuggestFlags    = 5051
	tagSupplementName  = 5052
	tagSupplementVer   = 5053
	tagSupplementFlags = 5054
	tagEnhanceName     = 5055
	tagEnhanceVer      = 5056
	tagEnhanceFlags    = 5057
	tagPayloadDigest   = 5092
	tagPayloadAlgo     = 5093
)

// Tags of the signature header.
const (
	sigDSA            = 267  // header signature, DSA or EdDSA
	sigRSA            = 268  // header signature, RSA
	sigSHA1           = 269  // header digest, hexadecimal text
	sigLongSize       = 270  // header and payload, bytes
	sigLongArchive    = 271  // unpacked payload, bytes
	sigSHA256         = 273  // header digest, hexadecimal text
	sigOpenPGP        = 278  // several header signatures, base64 (rpm 6)
	sigSize           = 1000 // header and payload, bytes
	sigPGP            = 1002 // header and payload signature, RSA
	sigMD5            = 1004 // header and payload digest
	sigGPG            = 1005 // header and payload signature, DSA
	sigPayloadSize    = 1007 // unpacked payload, bytes
	sigReserved       = 1008 // room that rpmsign fills
	digestAlgoSHA256  = 8    // OpenPGP's number, as in tagFileDigestAlgo
	fileFlagGhost     = 1 << 6
	modeTypeMask      = 0o170000
	modeTypeDirectory = 0o040000
)

// Sense flags of a dependency.
const (
	senseLess      = 1 << 1
	senseGreater   = 1 << 2
	senseEqual     = 1 << 3
	sensePrereq    = 1 << 6
	senseScriptPre = 1 << 9
	senseScriptPos = 1 << 10
	senseRPMLib    = 1 << 24
)
